"""A sender and a follower on providers that lag, lie, refuse and forget, on a chain that is reorganised.

Each seed draws the troubles of two providers, of which one at a time works. In the end every effect has happened once,
and the follower has each event of the chain once.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from covey.chain.events import AnyEvent, EpochPosted
from covey.chain.follower import Follower, SeenBlock
from covey.chain.history import History
from covey.chain.json_rpc import ChainClient
from covey.chain.outbox import Intent, IntentState
from covey.chain.sender import Sender
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.errors import TransientError
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import ZERO_HASH
from tests.fakes.troubled_node import Trouble, TroubledNode, open_troubled_node

pytestmark = pytest.mark.integration

TROUBLES = (
    Trouble.SLOW,
    Trouble.UNWILLING,
    Trouble.STALE,
    Trouble.GARBAGE,
    Trouble.BEHIND,
    Trouble.BLIND,
    Trouble.FORGETFUL,
)
EPOCHS, ROUNDS = 4, 60
PARTS = [pytest.param(seed, marks=pytest.mark.full if seed > 1 else ()) for seed in range(20)]


class Reader:
    """The events that a follower has given, as a role keeps them."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.cursor: tuple[SeenBlock, ...] = ()
        self.events: list[AnyEvent] = []

    def poll(self) -> bool:
        """Apply one poll. Returns whether the follower has caught up."""
        progress = self.follower.poll(self.cursor)
        if progress.rolled_back_to is not None:
            self.events = [event for event in self.events if event.block_number <= progress.rolled_back_to]
        self.events += progress.events
        self.cursor = progress.cursor
        return progress.is_caught_up


@contextmanager
def open_providers(url: str) -> Iterator[list[TroubledNode]]:
    with ExitStack() as stack:
        yield [stack.enter_context(open_troubled_node(url)) for _ in range(2)]


def survive(act: Callable[[], object]) -> object:
    """Act as a role's loop does, which goes on after a TransientError and after nothing else."""
    try:
        return act()
    except TransientError:
        return None


class Epochs:
    """Posts epochs as the coordinator does: one after the other, and again if the contract has refused one."""

    def __init__(self, chain, pool: int, store: SqliteOutbox) -> None:
        self._ledger, self._store = chain.contracts.ledger, store
        self.headers: list[EpochHeader] = []
        self._tries = [0] * EPOCHS
        for epoch in range(EPOCHS):
            previous = self.headers[-1].compute_hash() if self.headers else ZERO_HASH
            self.headers.append(
                EpochHeader(
                    pool=pool,
                    epoch=epoch,
                    work_root=f"0x{epoch + 1:064x}",
                    reward_root=f"0x{epoch + 7:064x}",
                    leaf_count=1,
                    units=5,
                    data_hash=f"0x{epoch + 3:064x}",
                    previous_hash=previous,
                )
            )

    def put_next(self, limit: int) -> bool:
        """Add the intent of the oldest of the first `limit` epochs that needs one. Returns whether all are mined."""
        for header in self.headers[:limit]:
            entry = self._store.find(f"post/{header.epoch}/{self._tries[header.epoch]}")
            if entry is None or entry.state is IntentState.REVERTED:
                self._tries[header.epoch] += entry is not None
                key = f"post/{header.epoch}/{self._tries[header.epoch]}"
                self._store.put(Intent(key=key, call=self._ledger.post(header, {})))
            if entry is None or entry.state is not IntentState.MINED:
                return False
        return limit >= EPOCHS


@pytest.mark.parametrize("seed", PARTS)
def test_walk__troubles_and_reorganisations__each_epoch_is_settled_once(chain, store: SqliteOutbox, seed: int):
    draw = random.Random(seed)
    pool = chain.open_pool()
    escrow, first = chain.contracts.ledger.escrow_of(pool), chain.client.block_number()
    chain.client.request("anvil_mine", hex(40))  # Reorganisations do not reach the pool's creation.
    with open_providers(chain.anvil.url) as providers:
        client = ChainClient(",".join(node.url for node in providers), timeout_s=2.0)
        chain_id = chain.deployment.chain_id
        sender = Sender(client, chain.wallets["operator"], store, chain_id=chain_id, stuck_seconds=20, watch_seconds=0)
        reader = Reader(Follower(client, chain.deployment))
        epochs = Epochs(chain, pool, store)
        for number in range(ROUNDS):
            if number % 4 == 0:
                good, bad = draw.sample(providers, 2)
                good.trouble, bad.trouble = draw.choice((Trouble.NONE, Trouble.SLOW)), draw.choice(TROUBLES)
            epochs.put_next(number // 8)
            survive(sender.pump)
            survive(reader.poll)
            if draw.random() < 0.1:
                chain.client.request("anvil_reorg", draw.randint(1, 12), [])
            chain.client.request("evm_mine")
        for node in providers:
            node.trouble = Trouble.NONE
        for _ in range(200):
            is_done = epochs.put_next(EPOCHS)
            if survive(sender.pump) == 0 and survive(reader.poll) and is_done:
                break
            chain.advance(2)
    history = History(client=chain.client, contracts=chain.contracts)
    on_chain = history.list_epochs(pool)
    assert [event.header for event in on_chain] == epochs.headers
    assert chain.contracts.ledger.owed_of(pool) == 15 * EPOCHS
    assert chain.contracts.ledger.escrow_of(pool) == escrow
    assert [event for event in reader.events if isinstance(event, EpochPosted) and event.pool == pool] == on_chain
    assert first < on_chain[0].block_number
