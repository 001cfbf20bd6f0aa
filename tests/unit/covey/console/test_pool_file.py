"""A pool's TOML file, which is read completely or refused in one line before anything is sent."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.console import account
from covey.console.addresses import is_example
from covey.console.pool_file import build_params, read_document, read_table
from covey.console.pool_terms import (
    list_useless_terms,
    list_weak_terms,
    list_weaknesses,
    read_terms,
    require_separate_roles,
    require_strong_terms,
)
from covey.environments.base import EnvironmentSpec
from covey.environments.registry import compute_fingerprint, load
from covey.errors import OperatorError
from tests.fakes.configs import read_settings
from tests.fakes.pool import make_terms

pytestmark = pytest.mark.unit

ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
BOB = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
CAROL = "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
POOL_FILE = f"""
[terms]
trainer = "{ALICE}"
arbiter = "{BOB}"
reward_per_million = 1_000_000
min_stake = 2
slash_amount = 2
challenge_window = 10
veto_window = 10
unbond_window = 20
validators = ["{ALICE}"]
[params]
name = "p"
quorum = 1
environment = {{ kind = "reasoning_gym", options = {{ name = "spell_backward" }} }}
"""


def test_pool_file__terms_and_params__hash_and_quorum_of_the_params(tmp_path):
    (tmp_path / "p.toml").write_text(POOL_FILE)
    terms, validators, params = account.read_pool_file(tmp_path / "p.toml", ALICE)
    assert (terms.params_hash, terms.quorum, terms.token) == (params.compute_hash(), 1, ALICE)
    assert validators == [ALICE]
    assert terms.header_quorum == terms.quorum, "as many sign each epoch"
    spelling = load(EnvironmentSpec(kind="reasoning_gym", options={"name": "spell_backward"}))
    assert params.environment.fingerprint == compute_fingerprint(spelling)
    assert params.environment.options == {"name": "spell_backward"}


@pytest.mark.parametrize(
    ("windows", "epoch_seconds", "length"),
    [(100, "epoch_seconds = 45.9", 45), (10, "epoch_seconds = 0.5", 1), (10, "", 5), (640, "", 20)],
)
def test_pool_file__epoch_length_left_out__is_the_coordinators_clock(tmp_path, windows, epoch_seconds, length):
    """The length is in whole seconds and at most half of the challenge window. Windows of 2 x 640 s allow 20 s."""
    text = POOL_FILE.replace("_window = 10", f"_window = {windows}").replace(
        "unbond_window = 20", "unbond_window = 9999"
    )
    (tmp_path / "p.toml").write_text(text + epoch_seconds)
    assert account.read_pool_file(tmp_path / "p.toml", ALICE)[0].epoch_length == length
    half = windows // 2
    (tmp_path / "p.toml").write_text(text.replace("min_stake", f"epoch_length = {half}\nmin_stake") + epoch_seconds)
    assert account.read_pool_file(tmp_path / "p.toml", ALICE)[0].epoch_length == half
    (tmp_path / "p.toml").write_text(text.replace("min_stake", f"epoch_length = {half + 1}\nmin_stake"))
    with pytest.raises(OperatorError, match="epoch_length exceeds half of challenge_window"):
        account.read_pool_file(tmp_path / "p.toml", ALICE)
    too_long = text.replace(f"_window = {windows}", "_window = 641").replace("[params]", "epoch_length = 20\n[params]")
    (tmp_path / "p.toml").write_text(too_long)
    with pytest.raises(OperatorError, match="epoch_length is less than 21"):
        account.read_pool_file(tmp_path / "p.toml", ALICE)


@pytest.mark.parametrize("named", [0, 1])
def test_pool_file__header_quorum__is_what_the_file_says(tmp_path, named):
    text = POOL_FILE.replace("quorum = 1", "quorum = 2").replace(f'["{ALICE}"]', f'["{ALICE}", "{CAROL}"]')
    (tmp_path / "p.toml").write_text(text.replace("min_stake", f"header_quorum = {named}\nmin_stake"))
    terms = account.read_pool_file(tmp_path / "p.toml", ALICE)[0]
    assert (terms.quorum, terms.header_quorum) == (2, named)


def with_environment(tmp_path, text):
    old = 'environment = { kind = "reasoning_gym", options = { name = "spell_backward" } }'
    assert old in POOL_FILE
    (tmp_path / "p.toml").write_text(POOL_FILE.replace(old, f"environment = {{ {text} }}"))
    return account.read_pool_file(tmp_path / "p.toml", ALICE)


def test_pool_file__fingerprint_of_its_own__is_kept_when_it_is_this_machines(tmp_path):
    named = 'kind = "reasoning_gym", options = { name = "spell_backward" }'
    filled = with_environment(tmp_path, named)[2]
    fingerprint = filled.environment.fingerprint
    assert with_environment(tmp_path, f'{named}, fingerprint = "{fingerprint}"')[2] == filled
    with pytest.raises(OperatorError, match="environment_differs"):
        with_environment(tmp_path, f'{named}, fingerprint = "0x{"00" * 32}"')


@pytest.mark.parametrize(
    "text",
    [
        'kind = "k"',
        'kind = "reasoning_gym", options = { name = "no such generator" }',
        'kind = "reasoning_gym", options = { name = "spell_backward", alpha = nan }',
    ],
)
def test_pool_file__environment_that_cannot_be_built__no_pool_is_made(tmp_path, text):
    with pytest.raises(OperatorError, match="bad_environment"):
        with_environment(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("[params]", "[parms]", "p.toml has unknown tables: parms: unknown name; did you mean params"),
        ("[params]\n", "", r"has no table \[params\]"),
        ("quorum = 1", "quorum = 0\ngroup_size = 1", "group_size: .*; quorum: "),
        ("min_stake = 2", "", r"\[terms\] of .*p.toml is wrong: min_stake: missing"),
        ("min_stake = 2", "min_steak = 2", "min_steak: unknown name; did you mean min_stake.*; min_stake: missing"),
        ("min_stake = 2", "min_stake = -2", "min_stake: is -2, but must not be negative"),
        ("min_stake = 2", "min_stake = 2\ngroup_size = 8", r"group_size: belongs in \[params\]"),
        ("min_stake = 2", "min_stake = 2\nis_invite_only = 1", "is_invite_only: is 1, but must be true or false"),
        ("quorum = 1", "quorum = 1\ngroup_per_step = 8", "group_per_step: unknown name; did you mean groups_per_step"),
        (
            "quorum = 1",
            "quorum = 4",
            "quorum is 4, but there are only 1 validators: lower quorum .* to at most 1, or list 4",
        ),
        (f'["{ALICE}"]', f'["{ALICE}", "{ALICE}"]', f"validators lists {ALICE} more than once"),
        (f'["{ALICE}"]', f'"{ALICE}"', "validators is not a list"),
        ("[terms]", "[terms", "is not valid TOML"),
        ("quorum = 1", 'quorum = 1\nmodel = { compute_dtype = "bfloat16" }', "run covey validator calibrate"),
        ("challenge_window = 10", "challenge_window = 0", "challenge_window or veto_window is 0"),
        ("unbond_window = 20", "unbond_window = 19", "unbond_window is shorter than .*, which is 20"),
        ("veto_window = 10", 'veto_window = "10"', "veto_window: is '10', but must be a whole number"),
        ("slash_amount = 2", "slash_amount = 3", "slash_amount exceeds min_stake"),
        ("min_stake = 2", "min_stake = 2\nmax_slashes = 0", "max_slashes is 0"),
        ("min_stake = 2", "min_stake = 2\nvalidator_bond = 5\nsigner_penalty = 6", "signer_penalty exceeds"),
        ("min_stake = 2", "min_stake = 2\nlight_slash_bps = 10001", "light_slash_bps exceeds 10,000"),
        (f'arbiter = "{BOB}"', f'arbiter = "{ALICE}"', "the arbiter is also a validator"),
        # 2 groups of 8 rollouts of 8 tokens
        ("min_stake = 2", "min_stake = 2\nheader_quorum = 4", "header_quorum is 4, but there are only 1 validators"),
        ("min_stake = 2", "min_stake = 2\nepoch_units = 127", "epoch_units is less than 128"),
        ("unbond_window = 20", "unbond_window = 9999\nepoch_length = 0", "epoch_length is less than 1"),
        ("quorum = 1", "quorum = 1\nmax_submission_bytes = 4096", "max_submission_bytes is less than "),
    ],
)
def test_pool_file__wrong__one_line_that_names_it(tmp_path, old, new, word):
    (tmp_path / "p.toml").write_text(POOL_FILE.replace(old, new))
    with pytest.raises(OperatorError, match=f"bad_pool_file: .*{word}") as caught:
        account.read_pool_file(tmp_path / "p.toml", ALICE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        (ALICE, ALICE[:-1] + "7", r"trainer in \[terms\] of .*p.toml is 0x.*267, which is mistyped: its checksum"),
        (BOB, BOB.lower(), r"arbiter in \[terms\] of .*p.toml is 0x.*, which has no checksum"),
        (
            f'["{ALICE}"]',
            '["alice.eth"]',
            r"validators\[0\] in \[terms\] of .*p.toml is alice.eth, which is not an address",
        ),
        (f'trainer = "{ALICE}"', "trainer = 5", r"trainer in \[terms\] of .*p.toml is 5, which is not an address"),
    ],
)
def test_pool_file__address__is_refused_unless_its_checksum_is_right(tmp_path, old, new, word):
    (tmp_path / "p.toml").write_text(POOL_FILE.replace(old, new))
    with pytest.raises(OperatorError, match=f"bad_address: {word}.*covey wallet show"):
        account.read_pool_file(tmp_path / "p.toml", ALICE)


SHIPPED = sorted((Path(__file__).resolve().parents[4] / "configs").glob("*pool.toml"))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: path.name)
def test_require_separate_roles__shipped_files__hold_examples_only(file):
    document = read_document(file)
    params = build_params(file, document, {})
    terms, validators = read_terms(file, read_table(file, document, "terms"), ALICE, params)
    with pytest.raises(OperatorError, match=r"example_address: trainer, arbiter, validators\[0\], .*wallet new"):
        require_separate_roles(file, terms, validators, BOB)
    assert all(map(is_example, validators))


def test_require_separate_roles__arbiter_that_signs__is_refused_before_the_contract_does(tmp_path):
    (tmp_path / "p.toml").write_text(POOL_FILE)
    terms, validators, _ = account.read_pool_file(tmp_path / "p.toml", ALICE)
    require_separate_roles(tmp_path, terms, validators, ALICE)
    with pytest.raises(OperatorError, match=r"bad_pool_file: .*the arbiter .* is also the operator"):
        require_separate_roles(tmp_path, terms, validators, BOB)


@pytest.mark.parametrize(
    ("trainer", "arbiter", "operator", "words"),
    [
        ("t", "a", "o", []),
        ("t", "t", "o", ["trainer and arbiter"]),
        ("v", "a", "o", ["the trainer is also a validator"]),
        ("t", "a", "v", ["the operator is also a validator"]),
        ("o", "a", "o", ["trainer and operator"]),
        (
            "v",
            "a",
            "v",
            ["the trainer is also a validator", "the operator is also a validator", "trainer and operator"],
        ),
    ],
)
def test_list_weaknesses__roles_of_one_account__are_named(trainer, arbiter, operator, words):
    found = list_weaknesses(SimpleNamespace(trainer=trainer, arbiter=arbiter), ["v", "w"], operator)
    assert [text[: len(word)] for text, word in zip(found, words, strict=True)] == words


@pytest.mark.parametrize(("fee", "most", "is_named"), [(0, 0, False), (1, 0, True), (1, 1, False), (0, 1, False)])
def test_list_useless_terms__fee_that_no_epoch_pays__is_named(fee, most, is_named):
    found = list_useless_terms(make_terms(verdict_fee=fee, epoch_verdicts=most))
    assert found == (["verdict_fee is 1 and epoch_verdicts is 0, so no verdict is paid"] if is_named else [])


@pytest.mark.parametrize(("name", "bits"), [("epoch_units", 56), ("verdict_fee", 80), ("epoch_verdicts", 32)])
def test_pool_file__more_bits_than_the_contract_keeps__are_refused(tmp_path, name, bits):
    for value in (2**bits - 1, 2**bits):
        (tmp_path / "p.toml").write_text(POOL_FILE.replace("min_stake", f"{name} = {value}\nmin_stake"))
        if value < 2**bits:
            assert getattr(account.read_pool_file(tmp_path / "p.toml", ALICE)[0], name) == value
        else:
            with pytest.raises(OperatorError, match=f"bad_pool_file: .*{name} is {value}, but may be at most"):
                account.read_pool_file(tmp_path / "p.toml", ALICE)


def test_pool_file__missing__operator_error(tmp_path):
    with pytest.raises(OperatorError, match="no_pool_file"):
        account.read_pool_file(tmp_path / "none.toml", ALICE)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"slash_amount": 0}, ["slash_amount is 0", "a cheat is expected to lose 0.00 times"]),
        ({"quorum": 1}, ["quorum is 1"]),
        ({"validator_bond": 0}, ["validator_bond is 0"]),
        ({"reward_per_million": 10**20}, ["a cheat is expected to lose"]),
        ({"strikes": 3, "light_slash_bps": 0}, ["a cheat is expected to lose 0.00 times"]),
    ],
)
def test_list_weak_terms__what_deters_nobody__is_named(changes, words):
    terms, params = read_settings(SHIPPED[0])
    found = list_weak_terms(replace(terms, **changes), params)
    assert len(found) == len(words)
    assert all(message.startswith(word) for message, word in zip(found, words, strict=True))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: path.name)
def test_require_strong_terms__shipped_files__are_strong(file):
    terms, params = read_settings(file)
    require_strong_terms(file, terms, params)
    with pytest.raises(OperatorError, match=r"weak_terms: .*slash_amount is 0.*--force"):
        require_strong_terms(file, replace(terms, slash_amount=0), params)
