"""What a listed pool says about pay and about a machine, worked out by hand."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from covey.chain.amounts import TokenUnit
from covey.chain.history import Listing
from covey.chain.structs import PoolState
from covey.network import market
from covey.network.market import ListedPool, OperatorRecord, PoolService, list_market
from covey.protocol.hardware_needs import HardwareNeeds, MachineHardware
from tests.fakes.account import ALICE
from tests.fakes.configs import CONFIGS, read_settings
from tests.fakes.pool import make_params, make_terms

pytestmark = pytest.mark.unit
MACHINE = MachineHardware(memory_bytes=1 << 30, free_disk_bytes=1 << 40)
POOL = ListedPool(
    pool=1, operator=ALICE, state=PoolState.ACTIVE, created_at=0, url="", service=PoolService.SERVED, trouble="",
    terms=read_settings(CONFIGS / "pool.toml")[0], params=make_params(), steps=3, escrow=900, free_escrow=700,
    spent_per_day=4800.0, fees_per_day=0.0, nodes=4, unit=TokenUnit(2, "CVT"),
    record=OperatorRecord(pools=1, disabled_epochs=0, cases=0),
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


class CountedDeployment:
    """History and contracts of a deployment of `total` pools, of which every third has ended, which counts requests."""

    def __init__(self, total: int, *, free: int = 700) -> None:
        self.requests = 0
        deployment = SimpleNamespace()
        terms = read_settings(CONFIGS / "pool.toml")[0]
        count = self.count
        self.contracts = SimpleNamespace(
            deployment=deployment,
            pools=SimpleNamespace(
                count_pools=count(lambda: total),
                state_of=count(lambda pool: PoolState.ENDED if pool % 3 == 0 else PoolState.ACTIVE),
                get_terms=count(lambda _: terms),
                operator_of=count(lambda _: ALICE),
            ),
            ledger=SimpleNamespace(
                escrow_of=count(lambda _: 200 + free), owed_of=count(lambda _: 200), epochs_of=count(lambda _: 0)
            ),
            policies=SimpleNamespace(steps_of=count(lambda _: 1)),
            get_token=count(lambda _: 1 / 0),
        )
        self.client = SimpleNamespace(get_block=count(lambda _: SimpleNamespace(timestamp=0)))

    def count(self, answer: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*values: object) -> Any:
            self.requests += 1
            return answer(*values)

        return ask

    def find_listings(self, pools: list[int], **_: object) -> dict[int, Listing]:
        created = SimpleNamespace(block_number=1, params="")
        return {pool: Listing(created=created, url=f"https://{pool}.example") for pool in pools}

    def count_nodes(self, pools: list[int], **_: object) -> dict[int, int]:
        return dict.fromkeys(pools, 4)

    def list_newest_epochs(self, *_: object, **__: object) -> dict[int, object]:
        return {}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """URLs that were asked. No request is sent."""
    urls: list[str] = []

    async def ask(pool: ListedPool, *_: object, **__: object) -> market._Answer:
        urls.append(pool.url)
        return market._Answer(PoolService.SERVED)

    monkeypatch.setattr(market, "_ask", ask)
    monkeypatch.setattr(market, "_read_unit", lambda *_: TokenUnit(2, "CVT"))
    return urls


def test_list_market__ten_thousand_pools__reads_and_asks_few_of_them(asked: list[str]):
    history = CountedDeployment(10_000)
    found = list_market(history, is_devnet=True, limit=50)
    assert [pool.pool for pool in found.pools[:3]] == [10_000, 9998, 9997]
    assert (len(found.pools), len(asked), found.total, found.is_late) == (50, 50, 10_000, False)
    assert found.closed + found.unread + 50 == 10_000
    assert history.requests < 600


def test_list_market__newest_pools_have_no_money__stops_after_a_bound_and_asks_nobody(asked: list[str]):
    history = CountedDeployment(10_000, free=0)
    found = list_market(history, is_devnet=True, limit=5)
    assert (found.pools, asked, found.closed, found.unread) == ([], [], 100, 9900)
    assert history.requests < 310
    everything = list_market(history, is_devnet=True, limit=5, everything=True)
    assert [pool.pool for pool in everything.pools] == [10_000, 9999, 9998, 9997, 9996]


def test_list_market__deadline_has_passed__counts_all_pools_as_unread(asked: list[str]):
    found = list_market(CountedDeployment(10_000), is_devnet=True, seconds=0.0)
    assert (found.pools, found.unread, found.is_late, asked) == ([], 10_000, True, [])


async def test_ask__no_time_left__is_not_asked():
    pool = replace(POOL, url="https://pool.example")
    answer = await market._ask(pool, SimpleNamespace(), seconds=0.0, is_devnet=True)
    assert answer.service is PoolService.NOT_ASKED
