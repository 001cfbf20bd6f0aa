"""A pool's bonds, escrow and clock, for commands that end a pool or leave it."""

from collections.abc import Iterable
from types import SimpleNamespace

from covey.chain.structs import Balance, BondKind, PoolState, Unbonding
from covey.chain.wallet import Wallet
from covey.errors import ProtocolError
from covey.protocol.ids import Address, PoolId
from tests.fakes.account import FakeAccount, FakeHistory, StandIn

UNBOND, CLOSING = 120, 120 + 4 * (60 + 40)
"""Seconds of the unbonding window, and from the pool's end until it is closed."""


class BondedPool:
    """What the contracts keep. A call is applied when the account sends it, as the contracts apply it."""

    def __init__(self, operator: Address, nodes: Iterable[Address] = ()) -> None:
        self.now, self.state = 1000, PoolState.ACTIVE
        self.ended_at: int | None = None
        self.operator, self.funded, self.posted = operator, 100, 15
        self.bonded: dict[tuple[BondKind, Address], int] = {}
        self.unbondings: dict[tuple[BondKind, Address], list[Unbonding]] = {}
        self.locked = 0
        self.validators: list[Address] = []
        self.owners = dict.fromkeys(nodes, operator)

    @property
    def closes_at(self) -> int:
        return (1 << 256) - 1 if self.ended_at is None else self.ended_at + CLOSING

    def apply(self, sender: Address, name: str, arguments: tuple[StandIn, ...]) -> None:
        if name == "end_pool":
            self.state, self.ended_at = PoolState.ENDED, self.now
        elif name == "refund_pool":
            assert self.now >= self.closes_at
            self.funded = self.posted
        elif name == "unbond":
            _, kind, amount = arguments
            assert amount <= self.bonded[kind, sender]
            self.bonded[kind, sender] -= amount
            self.unbondings.setdefault((kind, sender), []).append(
                Unbonding(amount=amount, available_at=self.now + UNBOND)
            )
        elif name == "withdraw":
            _, kind = arguments
            assert kind is not BondKind.OPERATOR or self.now >= self.closes_at
            left = [each for each in self.unbondings[kind, sender] if each.available_at > self.now]
            assert len(left) < len(self.unbondings[kind, sender])
            self.unbondings[kind, sender] = left
        elif name == "remove_node":
            assert self.owners.pop(arguments[1]) == sender


class NodeHistory(FakeHistory):
    """Lists the nodes that a contributor has in a `BondedPool`."""

    def __init__(self, pool: BondedPool) -> None:
        self._pool = pool

    def list_nodes(self, pool: PoolId, contributor: Address) -> list[Address]:
        return [node for node, owner in self._pool.owners.items() if owner == contributor]


class BondedAccount(FakeAccount):
    """An account of a `BondedPool`. It crashes before transaction number `crash_at`, counted from 0."""

    def __init__(self, pool: BondedPool, wallet: Wallet) -> None:
        super().__init__(1)
        self.chain, self._wallet = pool, wallet
        self.crash_at: int | None = None
        self.client.get_block = lambda tag: SimpleNamespace(timestamp=pool.now)
        pools, stakes, ledger = self.contracts.pools._values, self.contracts.stakes, self.contracts.ledger
        pools["get_terms"].unbond_window = UNBOND
        pools |= {"get_validators": pool.validators, "operator_of": pool.operator}
        self.contracts.pools.state_of = lambda _: pool.state
        self.contracts.pools.closes_at = lambda _: pool.closes_at
        stakes.stake_of = lambda _, kind, owner: pool.bonded.get((kind, owner), 0)
        stakes.unbondings_of = lambda _, kind, owner: list(pool.unbondings.get((kind, owner), ()))
        stakes.locked_of = lambda *_: pool.locked
        stakes.get_balance = lambda _, kind, owner: Balance(
            bonded=stakes.stake_of(1, kind, owner),
            leaving=sum(each.amount for each in stakes.unbondings_of(1, kind, owner)),
        )
        ledger.get_settlement = lambda _: SimpleNamespace(funded=pool.funded, posted=pool.posted)
        ledger.escrow_of = lambda _: pool.funded
        self.contracts.nodes.contributor_of = lambda _, node: pool.owners.get(node)
        self.fake_history: FakeHistory = NodeHistory(pool)

    def send(self, call: StandIn) -> StandIn:
        if self.crash_at is not None and len(self.sent) == self.crash_at:
            raise ProtocolError("crashed", "before this transaction")
        self.chain.apply(self.wallet.address, call.label, call.arguments)
        return super().send(call)
