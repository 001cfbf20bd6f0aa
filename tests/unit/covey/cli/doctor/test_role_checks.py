"""Rows of `covey doctor --config` for healthy networks, and for each thing that may be wrong with one."""

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.config import CoordinatorConfig
from covey.chain.amounts import SMALLEST, TokenUnit
from covey.chain.structs import PoolState, PoolTerms
from covey.cli.doctor.role_checks import CHECKS, judge
from covey.cli.doctor.snapshot import (
    ChainFacts,
    CoordinatorFacts,
    DeviceFacts,
    EngineProbe,
    FolderFacts,
    IsolationFacts,
    PoolFacts,
    Snapshot,
    Trouble,
)
from covey.protocol.api.public import NodeView
from covey.protocol.policy_record import PolicyRecord, TensorRow
from covey.sandbox import Isolation, IsolationTrial
from covey.sandbox.isolation import describe
from tests.fakes.pool import make_address, make_deployment, make_hash, make_params
from trainer.config import TrainerConfig
from validator.config import ValidatorConfig
from worker.config import WorkerConfig

pytestmark = pytest.mark.unit

KEY, OWNER, STRANGER = map(make_address, ("key", "owner", "stranger"))
HOME, ORIGIN = Path("/srv/home"), Path("/srv/origin")
GIB = 1 << 30
PLACES = {"home": HOME, "pool": 1, "deployment": "net/deployment.json", "key_file": "node.key"}
SETTINGS = {
    "worker": WorkerConfig(**PLACES),
    "validator": ValidatorConfig(**PLACES),
    "trainer": TrainerConfig(**PLACES, origin_root=ORIGIN),
    "coordinator": CoordinatorConfig(**PLACES),
}
ROLES = tuple(SETTINGS)
DEPLOYMENT = make_deployment(chain_id=7, rpc_url="http://node")
TERMS = PoolTerms(
    trainer=KEY,
    signer=KEY,
    arbiter=OWNER,
    token=OWNER,
    params_hash=make_hash("params"),
    reward_per_million=1_000_000,
    min_stake=100,
    slash_amount=60,
    validator_bond=50,
    quorum=2,
    challenge_window=10,
    veto_window=10,
    unbond_window=20,
)
POOL = PoolFacts(
    state=PoolState.ACTIVE,
    terms=TERMS,
    operator=KEY,
    is_validator=True,
    contributor=OWNER,
    nodes=(KEY,),
    unit=SMALLEST,
    stake=100,
    steps=4,
    newest_hash=make_hash("policy 3"),
)
BUBBLEWRAP = describe("bwrap", version="bubblewrap 0.11.0")
BARE = IsolationFacts(
    isolation=Isolation(level="limits", version="Linux 6.1"),
    failed=(
        IsolationTrial(level="bwrap", reason="bubblewrap is not installed"),
        IsolationTrial(level="unshare", reason="not permitted"),
    ),
)
CHAIN = ChainFacts(url="http://node", chain_id=7, head_time=1000, gas_price=10**9, codeless=(), balance=10**18)
COORDINATOR = CoordinatorFacts(
    pool=1,
    params=make_params(max_staleness=1),
    offset=0.2,
    nodes={},
    relays=("http://r",),
    execution_contracts={},
)


def make_record(size):
    """Return the record of a policy with one tensor."""
    tensor = TensorRow(name="w", dtype="BF16", shape=(size // 2,), digest=make_hash("w"))
    return PolicyRecord(pool=1, step=3, tensors=(tensor,), files=())


def see(role="worker", **changes):
    """Return the snapshot of a healthy role with `changes`: 8 GiB of weights on a device of 100 GiB."""
    folder = FolderFacts(free=1000 * GIB, held=0, is_writable=True)
    values = {
        "role": role,
        "settings": SETTINGS[role],
        "now": 1000.0,
        "address": KEY,
        "deployment": DEPLOYMENT,
        "folders": {HOME: folder, ORIGIN: folder} if role == "trainer" else {HOME: folder},
        "device": None if role == "coordinator" else DeviceFacts(name="H100", memory=100 * GIB),
        "engine": EngineProbe(name="hf", build="torch 2") if role in ("worker", "validator") else None,
        "isolation": None if role == "coordinator" else IsolationFacts(isolation=BUBBLEWRAP),
        "chain": CHAIN,
        "pool": POOL,
        "coordinator": None if role == "coordinator" else COORDINATOR,
        "relays": {"http://r": make_record(8 * GIB)},
    }
    return Snapshot(**values | changes)


def find(name, role="worker", **changes):
    (row,) = (row for row in judge(see(role, **changes)) if row.name == name)
    return row


@pytest.mark.parametrize("role", ROLES)
def test_judge__network_that_is_well__no_row_says_what_to_do(role):
    memory = {"trainer": 16}.get(role, 1) * 100 * GIB
    device = None if role == "coordinator" else DeviceFacts(name="H100", memory=memory)
    rows = judge(see(role, device=device))
    assert {row.name: row.status for row in rows if row.status != "ok"} == {}
    assert [row.fix for row in rows if row.fix] == []
    assert len({row.name for row in rows}) == len(rows) == len(CHECKS[role])


@pytest.mark.parametrize("role", ROLES)
def test_judge__no_chain__what_needs_it_is_skipped_and_the_rest_is_judged(role):
    gone = Trouble(detail="http://node did not answer", fix="Start that node")
    rows = {row.name: row for row in judge(see(role, chain=gone, pool=None, relays=None))}
    assert (rows["chain"].status, rows["chain"].fix) == ("fail", "Start that node")
    waiting = {
        "worker": {"pool", "registration", "stake", "relays", "memory"},
        "validator": {"pool", "role", "bond", "balance", "relays", "memory"},
        "trainer": {"pool", "role", "balance", "relays", "memory"},
        "coordinator": {"pool", "role", "bond", "balance", "relays", "clock"},
    }
    assert {name for name, row in rows.items() if row.status == "skip"} == waiting[role]
    assert all(row.detail.startswith("not checked; fix the row ") for row in rows.values() if row.status == "skip")
    assert rows["disk"].status == "ok"


@pytest.mark.parametrize("role", ROLES)
def test_judge__nothing_could_be_seen__every_row_is_there(role):
    lost = Trouble(detail="not seen")
    changes = dict.fromkeys(("address", "deployment", "coordinator", "engine", "isolation"), lost)
    device = None if role == "coordinator" else lost
    rows = judge(see(role, chain=None, pool=None, relays=None, folders={HOME: lost}, device=device, **changes))
    assert {row.status for row in rows} <= {"fail", "skip", "ok"}
    assert {row.name for row in rows if row.status == "ok"} <= {"balance", "port"}


@pytest.mark.parametrize(
    ("name", "role", "changes", "status", "text"),
    [
        ("key", "worker", {"address": Trouble(detail="node.key cannot be read", fix="Name a file")}, "fail", "Name a"),
        ("chain", "worker", {"chain": replace(CHAIN, chain_id=8)}, "fail", "file are on chain 7"),
        ("chain", "worker", {"chain": replace(CHAIN, codeless=("EpochLedger",))}, "fail", "addresses of EpochLedger"),
        ("pool", "worker", {"pool": replace(POOL, state=PoolState.CREATED)}, "warn", "covey pool start"),
        ("pool", "worker", {"pool": replace(POOL, state=PoolState.ENDED)}, "warn", "has ended"),
        ("balance", "worker", {"chain": replace(CHAIN, balance=0)}, "ok", "needs no ether"),
        ("balance", "trainer", {"chain": replace(CHAIN, balance=0)}, "fail", f"covey devnet fund {KEY}"),
        # 500,000 gas of 10^9 wei are 5 x 10^14: one wei less than a transaction, and one less than a hundred
        ("balance", "trainer", {"chain": replace(CHAIN, balance=5 * 10**14 - 1)}, "fail", "about 0 transactions"),
        ("balance", "trainer", {"chain": replace(CHAIN, balance=5 * 10**16 - 1)}, "warn", "about 99 transactions"),
        ("balance", "trainer", {"chain": replace(CHAIN, balance=5 * 10**16)}, "ok", "about 100 transactions"),
        ("role", "trainer", {"address": STRANGER}, "fail", f"key_file to the key of {KEY}"),
        ("role", "coordinator", {"address": STRANGER}, "fail", f"{STRANGER} is not the signer of pool 1"),
        ("role", "validator", {"pool": replace(POOL, is_validator=False)}, "fail", "replace-validator OLD"),
        ("bond", "validator", {"pool": replace(POOL, stake=49)}, "fail", "covey stake add 1 --raw --kind validator"),
        ("bond", "validator", {"pool": replace(POOL, stake=50)}, "ok", "the bond is 50, and the pool requires 50"),
        ("bond", "coordinator", {"pool": replace(POOL, stake=0)}, "warn", "--kind operator"),
        ("registration", "worker", {"pool": replace(POOL, contributor=None)}, "fail", "--node-key-file node.key"),
        ("stake", "worker", {"pool": replace(POOL, contributor=None)}, "skip", 'fix the row "registration" first'),
        ("stake", "worker", {"pool": replace(POOL, stake=40)}, "fail", "covey stake add 60 --raw --pool 1 with"),
        ("coordinator", "worker", {"coordinator": replace(COORDINATOR, pool=2)}, "fail", "serves pool 2, not 1"),
        ("engine", "worker", {"engine": Trouble(detail="on vllm, not on hf", fix="Set engine")}, "fail", "not on hf"),
        ("engine", "validator", {"engine": None}, "skip", 'fix the row "coordinator" first'),
        ("engine", "worker", {}, "ok", "hf with torch 2"),
        ("relays", "worker", {"relays": {}}, "fail", "list any relay"),
        ("relays", "worker", {"pool": replace(POOL, steps=0, newest_hash=None), "relays": None}, "skip", "no policy"),
        ("memory", "worker", {"pool": replace(POOL, steps=0, newest_hash=None), "relays": None}, "skip", "no policy"),
        ("isolation", "worker", {"isolation": BARE}, "warn", "isolate from network, files, processes, environment"),
        ("isolation", "trainer", {"isolation": BARE}, "warn", "bwrap: bubblewrap is not installed; unshare: not perm"),
        ("isolation", "validator", {"isolation": Trouble(detail="bwrap does not hold", fix="x")}, "fail", "not hold"),
        ("isolation", "validator", {}, "ok", "bwrap (bubblewrap 0.11.0"),
    ],
)  # fmt: skip
def test_row__one_thing_wrong__says_what_was_seen_and_what_to_do(name, role, changes, status, text):
    row = find(name, role, **changes)
    assert row.status == status, row
    assert text in f"{row.detail}. {row.fix}"
    assert bool(row.fix) == (status in ("warn", "fail")), row


def test_registration__invite_only__names_the_invitation():
    terms = replace(TERMS, is_invite_only=True)
    assert "covey pool invite" in find("registration", pool=replace(POOL, contributor=None, terms=terms)).fix


@pytest.mark.parametrize(("why", "whose"), [("strikes", "another contributor"), ("rejected", "another node")])
def test_registration__suspended_node__fails_with_advice_that_would_help(why: str, whose: str):
    nodes = {KEY: NodeView(contributor=OWNER, suspended=why, accepted=3)}
    row = find("registration", coordinator=replace(COORDINATOR, nodes=nodes))
    assert (row.status, "has suspended" in row.detail, why in row.detail) == ("fail", True, True)
    assert whose in row.fix


def test_registration__node_that_was_removed_and_registered_again__is_taken_back_when_the_worker_starts():
    nodes = {KEY: NodeView(contributor=OWNER, suspended="removed", accepted=3)}
    row = find("registration", coordinator=replace(COORDINATOR, nodes=nodes))
    assert (row.status, "when it starts" in row.detail) == ("ok", True)


def test_stake__nodes_on_other_machines__take_their_part():
    """Two others of the same contributor are registered, whether or not the coordinator knows them: 3 x 100."""
    row = find("stake", pool=replace(POOL, nodes=(STRANGER, KEY, make_address("second"))))
    assert (row.status, "requires 300 for 3" in row.detail) == ("fail", True)
    assert "covey stake add 200" in row.fix


def test_stake__more_is_locked_than_bonded__is_added_too():
    row = find("stake", pool=replace(POOL, stake=-20))
    assert "covey stake add 120" in row.fix


@pytest.mark.parametrize(
    ("name", "role", "stake", "detail", "fix"),
    [
        (
            "stake",
            "worker",
            40,
            "free stake of 0.4 CVT, but the pool requires 1 CVT for 1",
            "covey stake add 0.6 --pool 1",
        ),
        (
            "bond",
            "validator",
            5,
            "has a bond of 0.05 CVT, but the pool requires 0.5 CVT",
            "covey stake add 0.45 --kind",
        ),
        ("bond", "validator", 50, "0.5 CVT, and the pool requires 0.5 CVT", ""),
        ("bond", "coordinator", 150, "a bond of 1.5 CVT backs the operator's promises", ""),
    ],
)
def test_row__amounts__are_in_tokens(name, role, stake, detail, fix):
    row = find(name, role, pool=replace(POOL, unit=TokenUnit(2, "CVT"), stake=stake))
    assert detail in row.detail
    assert fix in row.fix
    assert "--raw" not in row.fix


def test_coordinator__parameters_of_another_pool__fail():
    row = find("coordinator", coordinator=replace(COORDINATOR, params=Trouble(detail="not the chain's hash")))
    assert (row.status, row.detail) == ("fail", "not the chain's hash")


def test_relays__one_of_two_is_away__is_a_warning_that_names_it():
    away = Trouble(detail="http://s did not answer")
    row = find("relays", relays={"http://r": make_record(8), "http://s": away})
    assert (row.status, row.detail) == ("warn", "1 of 2 relays serve policy 3; http://s did not answer")
    assert find("relays", relays={"http://s": away}).status == "fail"
