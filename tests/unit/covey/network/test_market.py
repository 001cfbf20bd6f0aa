"""What a listed pool says about pay and about a machine, worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from covey.chain.structs import PoolState
from covey.network import market
from covey.network.market import ListedPool, OperatorRecord, PoolService
from covey.protocol.hardware_needs import HardwareNeeds, MachineHardware
from tests.fakes.account import ALICE
from tests.fakes.configs import CONFIGS, read_settings
from tests.fakes.pool import make_params, make_terms

pytestmark = pytest.mark.unit
MACHINE = MachineHardware(memory_bytes=1 << 30, free_disk_bytes=1 << 40)
POOL = ListedPool(
    pool=1, operator=ALICE, state=PoolState.ACTIVE, created_at=0, url="", service=PoolService.SERVED, trouble="",
    terms=read_settings(CONFIGS / "pool.toml")[0], params=make_params(), steps=3, escrow=900, free_escrow=700,
    spent_per_day=4800.0, fees_per_day=0.0, nodes=4, record=OperatorRecord(pools=1, disabled_epochs=0, cases=0),
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 50),  # 4800 per day are 200 per hour, for 4 nodes
        ({"fees_per_day": 960.0}, 40),  # validators got a fifth
        ({"nodes": None}, None),
        ({"nodes": 0}, None),
        ({"spent_per_day": 0.0}, None),
        ({"free_escrow": 0}, 0),
        ({"free_escrow": 0, "nodes": None}, 0),
    ],
)
def test_expected_per_hour__pool__is_what_a_node_was_paid(changes: dict[str, float | None], expected: int | None):
    assert replace(POOL, **changes).expected_per_hour == expected


def test_list_misfits__pool__compares_needs_and_unreadable_parameters_fit_nobody():
    assert POOL.list_misfits(MACHINE) == []
    assert replace(POOL, params=make_params(needs=HardwareNeeds(min_memory_bytes=3 << 29))).list_misfits(MACHINE) == [
        "The pool asks for 1.5 GiB of memory, and this machine has 1.0 GiB."
    ]
    assert replace(POOL, params=None).list_misfits(MACHINE) == [
        "The pool's parameters are not valid for this version of Covey."
    ]


@pytest.mark.parametrize(
    ("epochs", "rates"),
    [
        ([], (0.0, 0.0)),
        ([(100, 9, 1)], (0.0, 0.0)),
        ([(100, 900, 9), (100, 1, 1)], (0.0, 0.0)),
        ([(100, 900, 9), (40_000, 50, 2), (43_300, 70, 3)], (240.0, 70.0)),  # the work of half a day
    ],
)
def test_compute_rates__epochs_by_time_reward_and_verdicts__counts_those_after_the_first(
    epochs: list[tuple[int, int, int]], rates: tuple[float, float]
):
    posted = [
        SimpleNamespace(record=SimpleNamespace(final_at=at, reward=reward), header=SimpleNamespace(verdicts=verdicts))
        for at, reward, verdicts in epochs
    ]
    assert market._compute_rates(posted, make_terms(verdict_fee=7)) == rates
