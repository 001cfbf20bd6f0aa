import tomllib
from dataclasses import replace

import pytest

from covey.chain.wallet import load_key
from covey.console.account import read_pool_file
from covey.demo.participants import BUDGET, MIN_STAKE, OPERATOR_BOND, TOKENS, VALIDATOR_BOND, DemoOptions, Participants
from covey.devnet.deploy import derive_key
from covey.environments.registry import DEMO, compute_fingerprint, load

pytestmark = pytest.mark.unit

ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"


def test_participants__workers__honest_and_cheats_in_turn(tmp_path):
    participants = Participants(tmp_path / "demo", DemoOptions(workers=2, cheats=4, seed=7))
    assert [(p.name, p.cheat) for p in participants.workers] == [
        ("worker-1", ""),
        ("worker-2", ""),
        ("cheat-1", "quantized"),
        ("cheat-2", "best-of-n"),
        ("cheat-3", "partial-int8"),
        ("cheat-4", "quantized"),
    ]
    assert participants.get_name(participants.workers[1].node) == "worker-2"
    assert participants.get_name("0xnobody") == "0xnobody"


def test_participants__keys__follow_from_the_seed_and_only_their_owner_reads_them(tmp_path):
    first, again = (Participants(tmp_path / name, DemoOptions(seed=7)) for name in "ab")
    other = Participants(tmp_path / "c", DemoOptions(seed=8))
    names = ["operator", "trainer", "arbiter", "validator-1", "worker-1", "worker-1-contributor"]
    addresses = [first.get_address(name) for name in names]
    assert addresses == [again.get_address(name) for name in names]
    assert not set(addresses) & {other.get_address(name) for name in names}
    assert len(set(addresses)) == len(names)
    file = first.get_key_file("operator")
    assert file.stat().st_mode & 0o777 == 0o600
    assert load_key(file).address == first.get_address("operator")
    assert file.read_text() == "0x" + derive_key("demo-7", "operator").hex() + "\n"


def test_participants__funded__those_who_send_transactions(tmp_path):
    participants = Participants(tmp_path / "demo", DemoOptions(workers=1, cheats=1))
    senders = [
        "operator",
        "trainer",
        "validator-1",
        "validator-2",
        "validator-3",
        "worker-1-contributor",
        "cheat-1-contributor",
    ]
    assert participants.list_funded() == {participants.get_address(name): TOKENS for name in senders}
    assert min(TOKENS - OPERATOR_BOND - BUDGET, TOKENS - VALIDATOR_BOND, TOKENS - 2 * MIN_STAKE) >= 0


def test_write_pool__read_by_the_command(tmp_path):
    participants = Participants(tmp_path / "demo", DemoOptions(steps=5, max_staleness=2))
    terms, validators, params = read_pool_file(participants.write_pool(), ALICE)
    assert validators == [participants.get_address(name) for name in participants.validators]
    assert (params.max_steps, params.max_staleness, params.quorum) == (5, 2, terms.quorum)
    assert terms.trainer == participants.get_address("trainer")
    assert terms.validator_bond >= terms.signer_penalty > 0
    assert terms.epoch_length <= params.epoch_seconds
    assert terms.unbond_window >= terms.challenge_window + terms.veto_window
    assert params.groups_per_step % params.groups_per_task == 0
    assert params.environment.fingerprint == compute_fingerprint(load(DEMO))


def test_write_role__shared_settings_beside_its_own(tmp_path):
    participants = Participants(tmp_path / "demo", DemoOptions())
    path = participants.write_role("worker-1", {"pool": 1, "relays": ["http://r"]}, key="operator")
    found = tomllib.loads(path.read_text())
    assert found == {
        "home": str(participants.folder / "worker-1"),
        "deployment": str(participants.deployment),
        "key_file": str(participants.get_key_file("operator")),
        "pool": 1,
        "relays": ["http://r"],
    }


def test_participants__folder_is_used__refused(tmp_path):
    Participants(tmp_path / "demo", DemoOptions())
    with pytest.raises(FileExistsError):
        Participants(tmp_path / "demo", replace(DemoOptions(), seed=1))
