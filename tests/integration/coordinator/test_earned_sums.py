"""What a contributor has earned: page, statement and file of an epoch say the same, each epoch rounded by itself."""

import dataclasses
import random
from collections import Counter
from pathlib import Path

import pytest

from coordinator.domain import settlement
from covey.protocol.epoch_file import EpochFile, require_rewards
from covey.protocol.ids import PoolId
from covey.protocol.prices import ScheduledPrice, compute_reward
from covey.protocol.verdict_fees import VerdictFees
from tests.fakes.databases import open_sqlite
from tests.fakes.epochs import close_epoch
from tests.fakes.pages import make_pages_context, open_pages
from tests.fakes.pool import POOL, FakePool, make_address, make_ledger, make_params

pytestmark = pytest.mark.integration
PRICE, LATER_PRICE = 333_333, 777_777
"""Prices per million units at which nearly every reward is rounded."""


@pytest.mark.parametrize(
    ("owners", "epochs"), [(4, 3), pytest.param(50, 12, marks=pytest.mark.full)], ids=["few", "fifty"]
)
async def test_earned__all_addresses_of_a_run__page_statement_and_file_agree(tmp_path: Path, owners: int, epochs: int):
    """An epoch in the middle is disabled, so its work is paid in the next one. Then the price has changed."""
    rng, middle = random.Random(owners), epochs // 2
    changes = ((PRICE, 0), (LATER_PRICE, 80 + middle))
    ledger = make_ledger(prices=tuple(ScheduledPrice(reward_per_million=each, start=start) for each, start in changes))
    prices = [PRICE if number <= middle else LATER_PRICE for number in range(epochs)]
    with open_sqlite(tmp_path / "rows.sqlite3") as database:
        pool = FakePool(database, make_params(max_staleness=3, groups_per_step=4 * owners * epochs))
        names = [f"n{number}" for number in range(owners)]
        pool.register(*names)
        pool.publish(0)
        before = dict[str, int]()
        for number in range(epochs):
            for name in names:
                for _ in range(rng.randint(1, 2)):
                    pool.decide(pool.work(name, units=rng.randint(1, 32)))
            pool.now += 20
            closed = close_epoch(pool, ledger)
            with database.write() as rows:
                row = rows.get_epoch(number)
                header = settlement.build_header(row, PoolId(POOL))
                row.header_hash, row.posted_block, row.final_at = header.compute_hash(), 5 + number, 100 + number
                if number == middle:
                    settlement.record_disabled(rows, number=number)
            file = EpochFile.from_bytes(closed.data, header)
            require_rewards(
                file,
                header,
                before=before,
                reward_per_million=prices[number],
                fees=VerdictFees(),
                validators=(),
                chain=ledger.chain_id,
                ledger=ledger.address,
            )
            before = before if number == middle else dict(file.rewards)
        ctx = make_pages_context(pool, tmp_path)
        ctx = dataclasses.replace(ctx, terms=dataclasses.replace(ctx.terms, challenge_window=10, veto_window=10))
        ctx.chain.prices = ledger.prices  # type: ignore[misc]  # It is a fake.
        async with open_pages(ctx) as client:
            for name in names:
                owner = make_address(f"{name}'s owner")
                shown = (await client.get(f"/v1/addresses/{owner}")).json()
                items = (await client.get(f"/v1/addresses/{owner}/submissions")).json()["items"]
                units = Counter[int]()
                for item in items:
                    units[item["epoch"]] += item["units"]
                stated = sum(compute_reward(each, prices[epoch]) for epoch, each in units.items())
                assert int(shown["settled"]) == stated == file.rewards[owner], name
                assert sum(int(item["pay"]) for item in items) <= stated, "rounding each submission pays no more"
