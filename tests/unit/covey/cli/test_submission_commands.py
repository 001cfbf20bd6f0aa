import shlex
from types import SimpleNamespace

import pytest

from covey import cli
from covey.chain import events
from covey.chain.wallet import wallet_from_key
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol import eip712
from covey.protocol.api.common import ReceiptBody, VerdictBody
from covey.protocol.api.public import SubmissionDetail, SubmissionView
from covey.protocol.eip712 import Domain
from covey.protocol.messages import Receipt, Verdict
from covey.runtime.urls import is_plain_url
from tests.fakes.account import ALICE, BOB, HASH, invoke, runner

pytestmark = pytest.mark.unit

VALIDATOR = wallet_from_key(b"\x22" * 32)
EVIDENCE = "0x" + "e1" * 32
URL = ["--coordinator-url", "http://c"]
SERVED = f"http://c: pool 1 on chain 31337, operated by {ALICE}"
RECEIPT = Receipt(
    pool=1,
    task=7,
    lease=9,
    node=BOB,
    contributor=ALICE,
    policy_version=3,
    work_key=HASH,
    groups=4,
    units=90,
    deadline=1000,
)
RECEIPT_HASH = eip712.compute_struct_hash(RECEIPT)
VERDICT = Verdict(
    pool=1,
    receipt_hash=RECEIPT_HASH,
    work_key=HASH,
    validator=VALIDATOR.address,
    outcome=1,
    reason=0,
    severity=0,
    units=80,
    evidence_hash=EVIDENCE,
    deadline=1000,
)
COURT = Domain(chain_id=31337, contract=ALICE)
SIGNATURE = eip712.sign(VERDICT, COURT, VALIDATOR)


def build_detail(**changes):
    values = {
        "receipt_hash": RECEIPT_HASH,
        "task": 7,
        "node": BOB,
        "contributor": ALICE,
        "policy_version": 3,
        "state": "SETTLED",
        "reason": "none",
        "units": 80,
        "epoch": 1,
        "commitment": HASH,
        "salt": HASH,
        "kind": 0,
        "evidence_hashes": (EVIDENCE,),
        "receipt": ReceiptBody.of(RECEIPT),
        "verdicts": (VerdictBody.of(VERDICT),),
        "signatures": (SIGNATURE,),
    }
    return SubmissionDetail(**(values | changes))


class Coordinator:
    """Answers every request with one submission."""

    def __init__(self, detail, relays=()):
        self.detail, self.relays, self.asked = detail, relays, []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def get_submission(self, prefix):
        self.asked.append(prefix)
        return self.detail

    async def get_pool(self):
        return SimpleNamespace(relays=self.relays, pool=1, chain_id=31337, operator=ALICE, contracts={})

    async def list_submissions(self, **wanted):
        self.asked.append(wanted)
        view = self.detail.model_dump(exclude={"receipt", "verdicts", "signatures"})
        return [SubmissionView(**view)]


def show(opened, detail, *options, relays=()):
    opened.coordinator = Coordinator(detail, relays)
    return invoke("submissions", "show", RECEIPT_HASH[:10], *options, "--pool", "1", *URL, key=False)


def test_show__decided__receipt_verdict_epoch_case_and_the_audit_of_it(opened):
    place = {"block_number": 5, "block_hash": HASH, "transaction_hash": "0xt", "log_index": 0}
    opened.history.case_events = [events.CaseVetoed(receipt_hash=RECEIPT_HASH, pool=1, node=BOB, **place)]
    found = show(opened, build_detail(), relays=("http://r:9001", "http://x y"))
    assert opened.coordinator.asked == [RECEIPT_HASH[:10]]
    (verdict,) = found.pop("verdicts")
    command = shlex.split(verdict.pop("audit"))
    assert command[:4] == ["covey", "validator", "audit", EVIDENCE]
    assert command[4:] == shlex.split("--deployment d.json --storage http://c --pool 1 --relay http://r:9001")
    tree = cli_tree("validator", "audit")
    tree.make_context("audit", command[3:])  # parses
    assert verdict == {
        "validator": VALIDATOR.address,
        "outcome": "accept",
        "reason": "none",
        "units": 80,
        "evidence_hash": EVIDENCE,
    }
    assert found == {
        "receipt_hash": RECEIPT_HASH,
        "task": 7,
        "node": BOB,
        "contributor": ALICE,
        "policy_version": 3,
        "state": "SETTLED",
        "reason": "none",
        "units": 80,
        "epoch": 1,
        "lease": 9,
        "work_key": HASH,
        "groups": 4,
        "claimed_units": 90,
        "deadline": 1000,
        "epoch_transaction": HASH,
        "epoch_final_at": 90,
        "case": [{"event": "CaseVetoed", "transaction": "0xt", "block": 5}],
    }


def cli_tree(*path):
    import typer

    command = typer.main.get_command(cli.app)
    for name in path:
        command = command.commands[name]
    return command


def test_show__for_people__every_part_is_there(opened):
    opened.coordinator = Coordinator(build_detail(epoch=None))
    plain = ["submissions", "show", RECEIPT_HASH, "--deployment", "d.json", "--pool", "1", *URL]
    result = runner.invoke(cli.app, [*plain, "--relay", "http://my relay"])
    assert f"receipt_hash  {RECEIPT_HASH}" in result.stdout
    assert f"validator  {VALIDATOR.address}" in result.stdout
    assert "--relay 'http://my relay'" in result.stdout
    assert "its file becomes public once its epoch is closed" in result.stderr


def test_show__not_decided__has_neither_receipt_nor_verdict(opened):
    hidden = {"receipt": None, "verdicts": (), "signatures": (), "evidence_hashes": (), "salt": None, "kind": None}
    found = show(opened, build_detail(state="SUBMITTED", epoch=None, **hidden))
    assert (found["state"], found["work_key"], found["verdicts"], found["case"]) == ("SUBMITTED", None, [], [])


OTHER = ReceiptBody.of(RECEIPT).model_copy(update={"units": 91})
ALIEN = VerdictBody.of(VERDICT).model_copy(update={"receipt_hash": HASH})


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"receipt_hash": HASH}, "bad_answer"),
        ({"receipt": OTHER}, "bad_answer"),
        ({"receipt": OTHER.model_copy(update={"pool": 1 << 300})}, "bad_message"),
        ({"verdicts": (ALIEN,)}, "bad_answer"),
        ({"signatures": ()}, "bad_answer"),
        ({"signatures": ("0x" + "00" * 65,)}, "bad_signature"),
        ({"signatures": (eip712.sign(VERDICT, COURT, wallet_from_key(b"\x33" * 32)),)}, "bad_signature"),
    ],
)
def test_show__what_hash_or_signature_refutes__is_refused(opened, changes, code):
    opened.coordinator = Coordinator(build_detail().model_copy(update=changes))
    plain = ["submissions", "show", RECEIPT_HASH[:10], "--deployment", "d.json", "--pool", "1", *URL]
    result = runner.invoke(cli.app, plain)
    assert (result.exception.code, result.stdout) == (code, "")


def test_show__coordinator_of_another_pool__is_refused(opened):
    opened.pool, opened.coordinator = 2, Coordinator(build_detail())
    plain = ["submissions", "show", RECEIPT_HASH[:10], "--deployment", "d.json", "--pool", "2", *URL]
    assert "serves pool 1, not 2" in str(runner.invoke(cli.app, plain).exception)


@pytest.mark.parametrize("text", ["0x1234567", "1234567", "0x12345678g", "0x" + "1" * 65, "../../status"])
def test_show__not_a_hash__is_refused_before_any_request(opened, text):
    result = runner.invoke(cli.app, ["submissions", "show", text, "--deployment", "d.json", "--pool", "1", *URL])
    assert result.exception.code == "bad_hash"


def test_list__names_what_is_wanted_and_prints_a_line_for_each(monkeypatch):
    coordinator = Coordinator(
        build_detail(state="REJECTED", reason="token_margin", epoch=None, evidence_hashes=(EVIDENCE,) * 3)
    )
    monkeypatch.setattr("covey.console.served_pool.CoordinatorClient", lambda url, signer, *, chain_id: coordinator)
    plain = ["submissions", "list", *URL, "--node", BOB, "--contributor", ALICE, "--state", "rejected", "--limit", "3"]
    result = runner.invoke(cli.app, plain)
    assert result.stderr == f"{SERVED}\n"
    header, line = result.stdout.splitlines()
    assert coordinator.asked == [{"limit": 3, "node": BOB, "contributor": ALICE, "state": "REJECTED"}]
    assert line.split() == ["7", "REJECTED", "token_margin", "80", "none", RECEIPT_HASH[:10], BOB, EVIDENCE]
    assert header.split() == ["task", "state", "reason", "units", "epoch", "receipt", "node", "evidence"]
    assert '"evidence_hashes": ["0xe1' in runner.invoke(cli.app, [*plain, "--json"]).stdout


def test_list__nothing_there__is_said_and_json_is_an_empty_list(monkeypatch):
    nobody = Coordinator(build_detail())
    nobody.list_submissions = lambda **_: nothing()
    monkeypatch.setattr("covey.console.served_pool.CoordinatorClient", lambda url, signer, *, chain_id: nobody)
    result = runner.invoke(cli.app, ["submissions", "list", *URL])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{SERVED}\nno submissions found\n")
    assert runner.invoke(cli.app, ["submissions", "list", *URL, "--json"]).stdout == '{"submissions": []}\n'


async def nothing():
    return []


@pytest.mark.parametrize(("option", "code"), [(["--state", "lost"], "bad_state"), (["--node", "0x12"], "bad_address")])
def test_list__wrong_words__are_refused(option, code):
    assert runner.invoke(cli.app, ["submissions", "list", *URL, *option]).exception.code == code


@pytest.mark.parametrize("field", ["state", "reason"])
def test_view__text_that_a_terminal_would_obey__is_refused(field):
    with pytest.raises(ValueError, match=field):
        build_detail(**{field: "a\x1b[2J"})


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ("http://127.0.0.1:9001", True),
        ("https://relay.example/x", True),
        ("ftp://relay", False),
        ("http://", False),
        ("http://a\x1b[2J", False),
        ("http://a b", False),
        ("http://[", False),
        ("http://" + "a" * 300, False),
    ],
)
def test_is_plain_url__strangers_relay(text, is_plain):
    assert is_plain_url(text) is is_plain


def test_client__is_the_one_that_commands_use():
    assert {"get_submission", "list_submissions", "get_pool"} <= set(dir(CoordinatorClient))


def test_list__no_coordinator_named__is_not_guessed():
    result = runner.invoke(cli.app, ["submissions", "list"])
    assert result.exception.code == "no_folder_named"
    assert "--coordinator-url is missing" in result.exception.message
