"""Rows about the machine, at the limits of each."""

from dataclasses import replace

import pytest

from covey.cli.doctor.machine_checks import spell_bytes
from covey.cli.doctor.snapshot import DeviceFacts, EngineProbe, FolderFacts, Trouble
from tests.fakes.pool import make_contract, make_exact, make_params
from tests.unit.covey.cli.doctor.test_role_checks import CHAIN, COORDINATOR, GIB, HOME, ORIGIN, find

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("role", "gib", "status"),
    [
        # 8 GiB of float32 weights are 2 Gi weights: an engine takes about 12, a trainer 32
        ("worker", 12, "ok"), ("worker", 11.9, "warn"), ("validator", 8, "warn"), ("validator", 7.9, "fail"),
        ("trainer", 32, "ok"), ("trainer", 31.9, "warn"), ("trainer", 7.9, "fail"),
    ],
)  # fmt: skip
def test_memory__float32_policy_of_8_gib__by_hand(role, gib, status):
    assert find("memory", role, device=DeviceFacts(name="gpu", memory=int(gib * GIB))).status == status


def test_memory__bfloat16__has_twice_the_weights_in_a_policy():
    params = COORDINATOR.params.model_copy(
        update={"model": COORDINATOR.params.model.model_copy(update={"compute_dtype": "bfloat16"})}
    )
    row = find(
        "memory",
        "trainer",
        coordinator=replace(COORDINATOR, params=params),
        device=DeviceFacts(name="gpu", memory=64 * GIB),
    )
    assert (row.status, row.detail) == ("ok", "the weights need 8 GiB, everything about 64 GiB; the device has 64 GiB")


@pytest.mark.parametrize(
    ("role", "count", "status"),
    [("worker", 2, "ok"), ("worker", 1, "fail"), ("worker", 0, "fail"), ("validator", 0, "ok")],
)
def test_engine__exact_lane__needs_a_quorum_of_validators_before_a_stake(role, count, status):
    contract = make_contract()
    params = make_params(verification=make_exact(contract))
    row = find(
        "engine",
        role,
        engine=EngineProbe(name="vllm", build="vllm 1", contract=contract),
        coordinator=replace(COORDINATOR, params=params, execution_contracts={contract.digest: count}),
    )
    assert (row.status, contract.digest in row.detail, contract.describe() in row.detail) == (status, True, True)
    assert f"{count} validators have" in row.detail


def test_engine__pool_with_both_lanes__says_that_it_is_calibrated():
    params = make_params(verification=make_exact(mode="calibrated"))
    row = find("engine", "worker", coordinator=replace(COORDINATOR, params=params))
    assert (row.status, row.detail) == (
        "ok",
        "the pool accepts hf with torch 2 on this device in the calibrated lane",
    )


def test_device__cpu_on_a_machine_with_a_gpu__is_a_warning():
    row = find("device", device=DeviceFacts(name="cpu", memory=GIB, has_idle_gpu=True))
    assert (row.status, row.fix) == ("warn", 'Set device = "cuda" to use the GPU')
    assert find("device", device=Trouble(detail="cuda cannot be used", fix="Set device")).status == "fail"


@pytest.mark.parametrize(
    ("free", "held", "status"),
    [
        # max_staleness 1: three policies of 8 GiB are kept, and a fourth is being downloaded
        (32, 0, "ok"), (31.9, 0, "warn"), (8, 24, "ok"), (1, 40, "ok"), (0.9, 40, "warn"),
    ],
)  # fmt: skip
def test_disk__worker__has_room_for_its_policies(free, held, status):
    folder = FolderFacts(free=int(free * GIB), held=held * GIB, is_writable=True)
    row = find("disk", folders={HOME: folder})
    assert row.status == status
    assert (str(HOME) in row.fix) == (status == "warn")


def test_disk__trainer__has_room_for_checkpoints_and_for_the_origin():
    """2 Gi weights: three checkpoints of 24 GiB and three policies of 8 are 96; five policies in the origin are 40."""
    roomy = FolderFacts(free=96 * GIB, held=0, is_writable=True)
    assert find("disk", "trainer", folders={HOME: roomy, ORIGIN: replace(roomy, free=40 * GIB)}).status == "ok"
    row = find("disk", "trainer", folders={HOME: roomy, ORIGIN: replace(roomy, free=39 * GIB)})
    assert (row.status, str(ORIGIN) in row.fix, str(HOME) in row.fix) == ("warn", True, False)


def test_disk__folder_of_somebody_else__fails():
    assert find("disk", folders={HOME: FolderFacts(free=GIB, held=0, is_writable=False)}).status == "fail"


def test_disk__policy_unknown__still_needs_a_gibibyte():
    folder = FolderFacts(free=GIB - 1, held=0, is_writable=True)
    assert find("disk", "coordinator", folders={HOME: folder}, relays=None).status == "warn"


@pytest.mark.parametrize(("offset", "status"), [(6.0, "ok"), (6.1, "fail"), (-60.0, "ok"), (-60.1, "fail")])
def test_clock__against_the_coordinator__fails_where_its_signatures_do(offset, status):
    assert find("clock", coordinator=replace(COORDINATOR, offset=offset)).status == status


@pytest.mark.parametrize(("head", "status"), [(1060, "ok"), (1061, "fail"), (1, "ok")])
def test_clock__against_the_chain__an_old_block_says_nothing(head, status):
    assert find("clock", chain=replace(CHAIN, head_time=head)).status == status


def test_clock__neither_chain_nor_coordinator__is_skipped():
    lost = Trouble(detail="away")
    assert find("clock", chain=lost, coordinator=lost).status == "skip"


def test_port__taken__is_well_only_where_this_pools_coordinator_has_it():
    taken = Trouble(detail="cannot listen on 127.0.0.1:8000: Address already in use", fix="Choose another port")
    assert find("port", "coordinator").status == "ok"
    assert find("port", "coordinator", port=taken, coordinator=COORDINATOR).status == "ok"
    assert find("port", "coordinator", port=taken, coordinator=replace(COORDINATOR, pool=2)).status == "fail"
    assert find("port", "coordinator", port=taken, coordinator=Trouble(detail="not HTTP")).status == "fail"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (3 << 19, "1.5 MiB"), (GIB << 20, "1024 TiB")],
)  # fmt: skip
def test_spell_bytes(size, text):
    assert spell_bytes(size) == text
