"""Commands that read the chain or send transactions, on a chain whose answers the test chooses."""

import re

import pytest

from covey import cli
from covey.chain.structs import Accusation, BondKind, Unbonding
from covey.cli import pool
from covey.console import account, options
from covey.errors import OperatorError, TransientError
from tests.fakes.account import ACCUSATION, ALICE, BOB, HASH, RECORD, Contract, invoke, runner

pytestmark = pytest.mark.unit


ADDED = {"added": 9, "stake": 50}
STAKE = {"stake": 50, "unbonding": 4, "withdraw_from": 95}


@pytest.mark.parametrize(
    ("arguments", "sent", "expected"),
    [
        (["pool", "fund", "9", "--raw", "--pool", "1"], ["approve", "fund_pool"], {"escrow": 100, "transaction": HASH}),
        (["pool", "start", "--pool", "1"], ["start_pool"], {"pool": 1, "transaction": HASH}),
        (["stake", "add", "9", "--raw", "--pool", "1"], ["approve", "stake"], ADDED | {"transaction": HASH}),
        (["stake", "unbond", "9", "--raw", "--pool", "1"], ["unbond"], STAKE | {"transaction": HASH}),
        (["stake", "withdraw", "--pool", "1", "--kind", "validator"], ["withdraw"], STAKE | {"transaction": HASH}),
    ],
)
def test_json__commands_that_send__parses_and_names_the_transaction(opened, arguments, sent, expected):
    assert invoke(*arguments) == expected
    assert opened.sent == sent


def test_json__pool_show__every_value_once(opened):
    found = invoke("pool", "show", "--pool", "1", key=False)
    assert found == {
        "state": "active",
        "operator": ALICE,
        "signer": ALICE,
        "trainer": ALICE,
        "arbiter": BOB,
        "heir": None,
        "params_hash": HASH,
        "reward_per_million": 3_000_000,
        "min_stake": 5,
        "quorum": 2,
        "header_quorum": 0,
        "validators": [ALICE],
        "escrow": 100,
        "owed": 15,
        "policies": 4,
        "epochs": 2,
    }
    plain = runner.invoke(cli.app, ["pool", "show", "--deployment", "d.json", "--pool", "1"]).stdout
    assert [line.split()[0] for line in plain.splitlines()] == list(chain_order(plain, found))


def chain_order(plain, found):
    """Return all names in the order in which they are printed."""
    names = [line.split()[0] for line in plain.splitlines()]
    assert set(names) == set(found)
    return names


CAROL = "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
POOL_FILE = f"""
[terms]
trainer = "{{trainer}}"
arbiter = "{BOB}"
validators = ["{ALICE}", "{CAROL}"]
reward_per_million = 1000000
min_stake = 1_000_000
slash_amount = 1_000_000
validator_bond = 9
challenge_window = 10
veto_window = 10
unbond_window = 20
[params]
name = "p"
quorum = 2
environment = {{{{ kind = "reasoning_gym", options = {{{{ name = "spell_backward" }}}} }}}}
"""


def test_pool_create__one_account_in_two_roles__needs_a_yes(opened, tmp_path):
    file = tmp_path / "p.toml"
    file.write_text(POOL_FILE.format(trainer=ALICE))
    plain = ["pool", "create", str(file), "--deployment", "d.json", "--key-file", "k"]
    refused = runner.invoke(cli.app, plain)
    assert refused.exception.code == "weak_pool"
    assert "the trainer is also a validator" in refused.exception.message
    assert "--yes" in refused.exception.fix
    assert opened.sent == []
    assert invoke("pool", "create", str(file), "--yes") == {
        "pool": 7, "transaction": HASH, "deterrence": pytest.approx(4, rel=0.01),
        "deterrence_at_half_detection": pytest.approx(3.8, rel=0.05),
    }  # fmt: skip
    assert opened.sent == ["create_pool"]


@pytest.mark.parametrize(("answer", "sent"), [("y", ["create_pool"]), ("n", []), ("", [])])
def test_pool_create__on_a_terminal__asks(opened, tmp_path, monkeypatch, answer, sent):
    monkeypatch.setattr(pool, "is_terminal", lambda: True)
    file = tmp_path / "p.toml"
    file.write_text(POOL_FILE.format(trainer=ALICE))
    plain = ["pool", "create", str(file), "--deployment", "d.json", "--key-file", "k"]
    result = runner.invoke(cli.app, plain, input=f"{answer}\n")
    assert f"{file}: the trainer is also a validator" in result.stderr
    assert (result.exit_code == 0, opened.sent) == (bool(sent), sent)


def test_pool_create__strangers_only__asks_nothing(opened, tmp_path):
    file = tmp_path / "p.toml"
    file.write_text(POOL_FILE.format(trainer="0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"))
    assert invoke("pool", "create", str(file))["pool"] == 7


def test_pool_create__url__is_announced(opened, tmp_path):
    file = tmp_path / "p.toml"
    file.write_text(POOL_FILE.format(trainer="0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"))
    found = invoke("pool", "create", str(file), "--url", "https://pool.example/")
    assert (found["pool"], found["url"]) == (7, "https://pool.example")
    assert opened.sent == ["create_pool", "announce"]


def test_pool_create__url_that_is_none__is_refused_before_the_pool_is_created(opened, tmp_path):
    file = tmp_path / "p.toml"
    file.write_text(POOL_FILE.format(trainer="0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"))
    plain = ["pool", "create", str(file), "--deployment", "d.json", "--key-file", "k", "--url", "pool.example"]
    assert runner.invoke(cli.app, plain).exception.code == "bad_url"
    assert opened.sent == []


def test_pool_create__announcement_fails__still_names_the_new_pool(opened, tmp_path, monkeypatch):
    file = tmp_path / "p.toml"
    file.write_text(POOL_FILE.format(trainer="0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"))
    send = opened.send

    def fail_to_announce(call):
        if call.label == "announce":
            raise TransientError("not_mined", "the announcement was not mined")
        return send(call)

    monkeypatch.setattr(opened, "send", fail_to_announce)
    plain = ["pool", "create", str(file), "--deployment", "d.json", "--key-file", "k", "--url", "https://pool.example"]
    result = runner.invoke(cli.app, plain)
    assert result.exit_code == 0
    assert "warn: pool 7 was created, but it was not announced: the announcement was not mined" in result.stderr
    assert result.stdout.splitlines()[0].split() == ["pool", "7"]


def test_pool_create__fee_that_no_epoch_pays__warns(opened, tmp_path):
    file = tmp_path / "p.toml"
    text = POOL_FILE.format(trainer="0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC")
    file.write_text(text.replace("[params]", "verdict_fee = 5\n[params]"))
    result = runner.invoke(cli.app, ["pool", "create", str(file), "--deployment", "d.json", "--key-file", "k"])
    assert (result.exit_code, opened.sent) == (0, ["create_pool"])
    assert f"warn: {file}: verdict_fee is 5 and epoch_verdicts is 0, so no verdict is paid" in result.stderr


def test_pool_create__terms_that_pay_for_cheating__needs_force_and_prints_what_would_deter(opened, tmp_path):
    """A task of 2 x 8 completions of 8 tokens pays 128; a stake of 1,000 is far too little at an audit rate of 0.1."""
    file = tmp_path / "p.toml"
    text = POOL_FILE.format(trainer="0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC")
    file.write_text(text.replace("1_000_000", "1_000"))
    plain = ["pool", "create", str(file), "--deployment", "d.json", "--key-file", "k"]
    refused = runner.invoke(cli.app, plain)
    assert refused.exception.code == "weak_terms"
    assert "--force" in refused.exception.fix
    assert (
        "a cheat is expected to lose 0.78 times its gain by small differences in all rows, which only a whole replay "
        "finds, but must lose at least 3 times"
    ) in refused.exception.message
    assert runner.invoke(cli.app, [*plain, "--yes"]).exception.code == "weak_terms"
    assert opened.sent == []
    forced = runner.invoke(cli.app, [*plain, "--force"])
    assert (forced.exit_code, opened.sent) == (0, ["create_pool"])
    assert "deterrence  a cheat is expected to lose 0.8 times its gain by the worst plan: small" in forced.stdout
    name, value = re.search(r"set (\w+) to ([\d.]+)", refused.exception.message).groups()
    assert name == "audit_rate"
    file.write_text(text.replace("1_000_000", "1_000") + f"[params.verification]\n{name} = {value}\n")
    assert invoke("pool", "create", str(file))["pool"] == 7  # the first number that it named is enough


def test_json__stake_show(opened):
    found = invoke("stake", "show", "--pool", "1")
    assert found == STAKE | {"account": opened.wallet.address, "kind": "contributor", "locked": 1}


@pytest.mark.parametrize(
    ("kind", "unbondings", "locked", "closes_at", "said"),
    [
        ("validator", [], 0, 0, "no validator stake of SIGNER is unbonding. Run covey stake unbond AMOUNT --kind val"),
        ("contributor", [90], 1, 0, "open cases lock 0.1 CVT of SIGNER. Wait until they are decided: covey case show"),
        ("contributor", [130], 0, 0, "0.2 CVT of SIGNER can be withdrawn from 1970-01-01 00:02:10 UTC, in 30 s. Run "),
        ("operator", [90], 0, 7300, "from 1970-01-01 02:01:40 UTC, in 2 hours. Run this command again then"),
        ("operator", [90], 0, (1 << 256) - 1, "from a while after the end of the pool. End the pool with covey pool"),
    ],
)
def test_stake_withdraw__too_early__says_why_and_until_when(opened, kind, unbondings, locked, closes_at, said):
    opened.contracts.stakes._values |= {
        "unbondings_of": [Unbonding(amount=2, available_at=at) for at in unbondings],
        "locked_of": locked,
    }
    opened.contracts.pools._values["closes_at"] = closes_at
    chain = ["--pool", "1", "--deployment", "d.json", "--key-file", "k"]
    result = runner.invoke(cli.app, ["stake", "withdraw", "--kind", kind, *chain])
    assert (result.exception.code, opened.sent) == ("nothing_to_withdraw", [])
    assert said.replace("SIGNER", opened.wallet.address) in str(result.exception)


def test_pool_fund__approval__is_the_ledgers(opened):
    invoke("pool", "fund", "9", "--raw", "--pool", "1")
    assert opened.calls == [(BOB, 9), (1, 9)]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        (["pool", "fund", "1.5"], (1, 15)),
        (["stake", "add", "1.5 CVT"], (1, BondKind.CONTRIBUTOR, 15)),
        (["stake", "unbond", "1.5"], (1, BondKind.CONTRIBUTOR, 15)),
    ],
)
def test_amounts__without_raw__are_in_units_of_the_token_whether_or_not_json(opened, arguments, sent):
    """The token has one decimal."""
    invoke(*arguments, "--pool", "1")
    plain = runner.invoke(cli.app, [*arguments, "--pool", "1", "--deployment", "d.json", "--key-file", "k"])
    assert [call for call in opened.calls if call[0] == 1] == [sent, sent]
    assert {"escrow  10 CVT", "stake  5 CVT"} & {line.strip() for line in plain.stdout.splitlines()}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (
            ["pool", "show"],
            {"reward_per_million": "300000 CVT", "min_stake": "0.5 CVT", "escrow": "10 CVT", "owed": "1.5 CVT"},
        ),
        (["pool", "show", "--raw"], {"reward_per_million": "3000000", "min_stake": "5", "escrow": "100", "owed": "15"}),
        (["stake", "show", "--key-file", "k"], {"stake": "5 CVT", "unbonding": "0.4 CVT", "locked": "0.1 CVT"}),
        (["stake", "withdraw", "--kind", "validator", "--key-file", "k"], {"stake": "5 CVT"}),
    ],
)
def test_amounts__shown_to_people__have_the_symbol(opened, arguments, shown):
    plain = runner.invoke(cli.app, [*arguments, "--pool", "1", "--deployment", "d.json"]).stdout
    lines = dict(line.split(maxsplit=1) for line in plain.splitlines())
    assert {name: lines[name] for name in shown} == shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pool", "fund", "1.55"], "bad_amount: 1.55 has too many decimal places: CVT has 1"),
        (
            ["pool", "fund", "100000001"],
            "smallest_unit: 100000001 CVT is more than a million times the balance of 100 CVT",
        ),
        (["stake", "add", "100000001"], "add --raw if it is in the token's smallest unit"),
        (["stake", "unbond", "5000001"], "more than a million times the balance of 5 CVT"),
        (["stake", "unbond", "6"], "exceeds_balance: 6 CVT is more than the 5 CVT of 0x"),
        (["stake", "add", "101"], "exceeds_balance: 101 CVT is more than the 100 CVT of 0x"),
        (["pool", "fund", "101"], "Choose an amount up to 100 CVT, or add tokens to the account"),
        (["stake", "add", "1 USD"], "bad_amount: 1 USD is not an amount in CVT"),
    ],
)
def test_amounts__wrong__nothing_is_sent(opened, arguments, message):
    result = runner.invoke(cli.app, [*arguments, "--pool", "1", "--deployment", "d.json", "--key-file", "k"])
    assert message in str(result.exception)
    assert opened.sent == []


def test_json__odd_token__is_not_asked_for_its_unit(opened):
    opened.token = Contract(ALICE, decimals=99)
    assert invoke("pool", "show", "--pool", "1", key=False)["escrow"] == 100
    result = runner.invoke(cli.app, ["pool", "show", "--pool", "1", "--deployment", "d.json"])
    assert result.exception.code == "odd_token"


@pytest.mark.parametrize(
    ("arguments", "sent", "call", "expected"),
    [
        (["pool", "invite", ALICE, BOB], "invite", (1, [ALICE, BOB]), {"invited": [ALICE, BOB]}),
        (["pool", "replace-validator", ALICE, BOB], "replace_validator", (1, ALICE, BOB), {"validators": [ALICE]}),
        (["worker", "remove", BOB], "remove_node", (1, BOB), {"node": BOB}),
        (["case", "veto", HASH], "veto", (ACCUSATION,), {"receipt_hash": HASH, "node": BOB}),
        (["epoch", "disable", "1", "--blame-attesters"], "disable_epoch", (1, RECORD, True), {"epoch": 1}),
    ],
)
def test_json__admin_commands__send_what_was_named(opened, arguments, sent, call, expected):
    assert invoke(*arguments, "--pool", "1") == expected | {"transaction": HASH}
    assert (opened.sent, opened.calls) == ([sent], [call])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["pool", "invite", ALICE, "0x12"], "bad_address"),
        (["pool", "replace-validator", ALICE, BOB.lower()], "bad_address"),
        (["worker", "remove", "bob"], "bad_address"),
        (["case", "veto", "0x12"], "bad_hash"),
        (["case", "veto", "0x" + "00" * 32], "unknown_case"),
        (["epoch", "disable", "2"], "unknown_epoch"),
    ],
)
def test_admin_commands__what_is_not_there__is_said_and_nothing_sent(opened, arguments, code):
    result = runner.invoke(cli.app, [*arguments, "--pool", "1", "--deployment", "d.json", "--key-file", "k"])
    assert result.exception.code == code
    assert opened.sent == []


def test_case_show__cases_of_the_pool__in_their_order_with_the_courts_state(opened):
    opened.fake_history.accusations = [
        Accusation(receipt_hash=f"0x{number}", pool=pool, node=BOB, contributor=ALICE)
        for number, pool in ((1, 1), (2, 2), (3, 1))
    ]
    first, second = invoke("case", "show", "--pool", "1", key=False)["cases"]
    assert first == {
        "receipt_hash": "0x1",
        "node": BOB,
        "contributor": ALICE,
        "state": "locked",
        "reason": "proof",
        "amount": 60,
        "veto_until": 120,
    }
    assert second == first | {"receipt_hash": "0x3"}
    plain = runner.invoke(cli.app, ["case", "show", "--pool", "1", "--deployment", "d.json"]).stdout
    assert [line.split()[1] for line in plain.splitlines() if "receipt_hash" in line] == ["0x1", "0x3"]


def test_case_show__no_cases__says_so_and_json_stays_a_list(opened):
    plain = runner.invoke(cli.app, ["case", "show", "--pool", "3", "--deployment", "d.json"])
    assert (plain.exit_code, plain.stdout, plain.stderr) == (0, "", "pool 3 has no cases\n")
    assert invoke("case", "show", "--pool", "3", key=False) == {"cases": []}


def test_show__nothing_and_lists__are_words(capsys):
    options.show({"epoch": None, "validators": [ALICE, BOB], "invited": [], "owed": 0}, as_json=False)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["epoch", "none"],
        ["validators", ALICE, BOB],
        ["invited", "none"],
        ["owed", "0"],
    ]


def test_worker_register__new_node__both_sign_and_the_key_is_kept(opened, tmp_path):
    path = tmp_path / "node.key"
    first = invoke("worker", "register", "--pool", "1", "--node-key-file", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    second = invoke("worker", "register", "--pool", "1", "--node-key-file", str(path))
    assert first["node"] == second["node"] != opened.wallet.address
    assert opened.sent == ["register_node"] * 2


def test_bond_kind__names__and_a_wrong_one():
    assert [account.Account.bond_kind(name) for name in ("contributor", "VALIDATOR", "operator")] == list(BondKind)
    with pytest.raises(OperatorError, match=r"bad_kind: .* Use one of contributor, validator, operator"):
        account.Account.bond_kind("friend")


@pytest.mark.parametrize("is_devnet", [True, False])
def test_pool_create__windows_under_a_day__are_a_warning_unless_it_is_a_devnet(
    opened, tmp_path, monkeypatch, is_devnet
):
    monkeypatch.setattr("covey.local.joining.is_devnet", lambda deployment: is_devnet)
    file = tmp_path / "p.toml"
    text = POOL_FILE.format(trainer="0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC")
    for window, seconds in (("challenge", 3600), ("veto", 86_400), ("unbond", 604_800)):
        text = re.sub(rf"{window}_window = \d+", f"{window}_window = {seconds}", text)
    file.write_text(text.replace("[params]", "epoch_length = 1800\n[params]"))
    result = runner.invoke(cli.app, ["pool", "create", str(file), "--deployment", "d.json", "--key-file", "k"])
    assert (result.exit_code, opened.sent) == (0, ["create_pool"])
    warning = f"warn: {file}: challenge_window is 3600, but a public pool requires 86400\n"
    assert (warning in result.stderr) == (not is_devnet)
    assert "veto_window" not in result.stderr
