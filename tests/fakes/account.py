"""The account of a command, with a chain and a coordinator whose content a test chooses."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from typer.testing import CliRunner

from covey import cli
from covey.chain.events import CaseExecuted, CaseLapsed, CaseOpened, CaseVetoed, Event, PolicyPublished
from covey.chain.structs import Accusation, Case, EpochRecord, OnChainCaseState, PoolState, RoleHolder, Unbonding
from covey.chain.wallet import wallet_from_key
from covey.console import account
from covey.errors import TransientError
from covey.protocol.api.public import RewardView, SubmissionView
from covey.protocol.ids import ZERO_ADDRESS, Address, Hash, PoolId
from covey.protocol.merkle import MerkleTree, compute_reward_leaf
from covey.protocol.prices import EpochPrices, ScheduledPrice

ALICE = Address("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266")
BOB = Address("0x70997970C51812dc3A010C7d01b50e0d17dc79C8")
HASH = Hash("0x" + "ab" * 32)
runner = CliRunner()
StandIn = Any
"""Type of an object that has only those members of the real one that the commands under test use."""


class Contract:
    """Answers every read from `values`, and turns every other call into the transaction that would be sent."""

    def __init__(self, address: Address, **values: object) -> None:
        self.address, self._values = address, values

    def __getattr__(self, name: str) -> StandIn:
        if name in self._values:
            return lambda *_: self._values[name]
        return lambda *arguments, **named: SimpleNamespace(label=name, arguments=(*arguments, *named.values()))


SIGNER = wallet_from_key(b"\x11" * 32)
LEAF = compute_reward_leaf(chain=31337, ledger=BOB, pool=PoolId(1), contributor=SIGNER.address, cumulative=45)
"""Leaf of a reward tree in which only the signer has earned something: 45."""
RECORD = EpochRecord(
    header_hash=HASH, reward_root=MerkleTree([LEAF]).root, epoch=1, final_at=90, reward=5, cumulative=45
)
ACCUSATION = Accusation(receipt_hash=HASH, pool=PoolId(1), node=BOB, contributor=ALICE)


class FakeHistory:
    """Epoch 1 is posted and pays; one case is open. The newest pool of everybody is 7."""

    def find_pool(self, operator: Address, params_hash: Hash) -> PoolId:
        return PoolId(7)

    def find_epoch(self, pool: PoolId, epoch: int) -> StandIn:
        return SimpleNamespace(epoch=1, record=RECORD, transaction_hash=HASH) if (pool, epoch) == (1, 1) else None

    def find_claimable(self, pool: PoolId, *, now: int) -> StandIn:
        return self.find_epoch(pool, 1)

    def read_prices(self, pool: PoolId, epochs: Sequence[StandIn], *, now: int) -> EpochPrices:
        posted_at = {posted.epoch: posted.record.final_at - 50 for posted in epochs}
        return EpochPrices(prices=self.prices, posted_at=posted_at, now=now)

    def list_unfinal(self, pool: PoolId, *, now: int) -> list[StandIn]:
        return [posted for posted in self.unfinal if posted.record.final_at > now]

    prices = (ScheduledPrice(reward_per_million=3_000_000, start=0),)
    unfinal: Sequence[StandIn] = ()
    case_events: Sequence[CaseOpened | CaseVetoed | CaseExecuted | CaseLapsed] = ()
    policies: Sequence[PolicyPublished] = ()
    accusations: Sequence[Accusation] = ()

    def list_case_events(self, receipt_hash: Hash) -> list[Event]:
        return [event for event in self.case_events if event.receipt_hash == receipt_hash]

    def list_policies(self, pool: PoolId) -> list[PolicyPublished]:
        return [event for event in self.policies if event.pool == pool]

    def list_accusations(self, pool: PoolId) -> list[Accusation]:
        return [accusation for accusation in self.accusations if accusation.pool == pool]

    def find_accusation(self, receipt_hash: Hash) -> Accusation | None:
        return ACCUSATION if receipt_hash == HASH else None


class FakeAccount(account.Account):
    """An account on a chain whose content the test chooses."""

    client: StandIn
    deployment: StandIn
    contracts: StandIn
    token: StandIn
    coordinator: StandIn

    def __init__(self, pool: int) -> None:
        self.fake_history = FakeHistory()
        self.pool, self._wallet = PoolId(pool), SIGNER
        self.reward: RewardView | None = None
        self.sent: list[str] = []
        self.calls: list[tuple[StandIn, ...]] = []
        self.submissions: list[SubmissionView] = []
        self.client = SimpleNamespace(
            get_block=lambda tag: SimpleNamespace(timestamp=100 if tag == "latest" else tag),
            count_transactions=lambda *_: 0,
        )
        self.deployment = SimpleNamespace(token=ALICE, chain_id=31337)
        self.contracts = SimpleNamespace(
            deployment=self.deployment,
            pools=Contract(
                ALICE,
                get_terms=SimpleNamespace(
                    trainer=ALICE,
                    signer=ALICE,
                    arbiter=BOB,
                    heir=ZERO_ADDRESS,
                    params_hash=HASH,
                    reward_per_million=3_000_000,
                    min_stake=5,
                    quorum=2,
                    header_quorum=0,
                    challenge_window=60,
                    veto_window=40,
                ),
                state_of=PoolState.ACTIVE,
                operator_of=ALICE,
                get_validators=[ALICE],
                get_prices=(ScheduledPrice(reward_per_million=3_000_000, start=0),),
                get_role=RoleHolder(account=ALICE, next=ZERO_ADDRESS, next_from=0),
                count_pools=7,
            ),
            policies=Contract(ALICE, steps_of=4),
            ledger=Contract(BOB, epochs_of=2, claimed_of=30, deduction_of=0, escrow_of=100, owed_of=15, credit_of=0),
            court=Contract(
                ALICE,
                get_case=Case(amount=60, veto_until=120, state=OnChainCaseState.LOCKED, reason=5, span=7),
            ),
            stakes=Contract(
                ALICE,
                stake_of=50,
                locked_of=1,
                unbondings_of=[Unbonding(amount=2, available_at=95)] * 2,
                credit_of=0,
            ),
            nodes=Contract(ALICE, nonce_of=0),
        )
        # Its domain is another one's, so it gets approvals instead of permits.
        domain = {"name": "Coin", "domain_separator": HASH, "nonces": 0}
        self.token = Contract(ALICE, allowance=0, decimals=1, symbol="CVT", balance_of=1000, **domain)

    @property
    def history(self) -> StandIn:
        return self.fake_history

    def open_client(self, coordinator_url: str) -> StandIn:
        return self.coordinator

    def send(self, call: StandIn) -> StandIn:
        self.sent.append(call.label)
        self.calls.append(call.arguments)
        return SimpleNamespace(transaction_hash=HASH)

    async def _get_reward(self, coordinator_url: str, contributor: Address, epoch: int) -> RewardView | None:
        if coordinator_url == "http://away":
            raise TransientError("coordinator_unreachable", "no\x1b[2J answer")
        return self.reward

    def list_submissions(
        self, coordinator_url: str, *, limit: int, contributor: Address | None = None
    ) -> list[SubmissionView]:
        return [view for view in self.submissions if view.contributor == contributor]


def invoke(*arguments: str, key: bool = True) -> StandIn:
    """Run a command with --json and return what it prints."""
    options = ["--deployment", "d.json", *(["--key-file", "k"] if key else [])]
    result = runner.invoke(cli.app, [*arguments, *options, "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)
