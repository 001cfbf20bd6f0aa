"""A validator's enforcement with the real court: a case that the slash cap refuses is proposed again."""

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from covey.chain.outbox import IntentState
from covey.chain.sender import Sender
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.chain.structs import Accusation, BondKind, OnChainCaseState
from covey.protocol.api.common import ReceiptBody, VerdictBody
from covey.protocol.api.validator import HardCase
from covey.protocol.eip712 import compute_struct_hash, sign
from covey.protocol.ids import ZERO_HASH
from covey.protocol.messages import Receipt
from covey.protocol.verdict import Judgement, Reason
from tests.integration.chain.making import make_receipt
from validator import enforcement
from validator.config import ValidatorConfig
from validator.context import Context
from validator.verdicts import build_verdict

pytestmark = pytest.mark.integration
DAY = 86_400
SPAN = 7 * DAY
"""`unbond_window` of a public pool, which is also the span of its slash cap."""


class Enforcer:
    """Enforcement of validator 0, with its own outbox and the default verdict lifetime."""

    def __init__(self, chain, pool: int, outbox: SqliteOutbox) -> None:
        self.chain, self.outbox = chain, outbox
        self.domain = chain.domain("slashing_court")
        self.sender = Sender(
            chain.client, chain.wallets["validator-0"], outbox, chain_id=chain.deployment.chain_id
        )  # fmt: skip
        self.network = SimpleNamespace(
            contracts=chain.contracts, chain=chain.client, receipt_domain=self.domain, pool=pool,
            terms=chain.contracts.pools.get_terms(pool),
        )  # fmt: skip

    def send(self, key, call) -> None:
        Context.send(self, key, call)

    def build_case(self, receipt: Receipt) -> HardCase:
        """Return the case that the coordinator lists after two validators have rejected the work for its proofs."""
        seconds = ValidatorConfig.model_fields["verdict_seconds"].default
        wallets = [self.chain.wallets[f"validator-{i}"] for i in range(2)]
        verdicts = [
            build_verdict(
                Judgement.reject(Reason.PROOF), receipt, is_whole=True,
                evidence_hash=ZERO_HASH, validator=wallet.address,
                now=self.chain.now(), seconds=seconds,
            )
            for wallet in wallets
        ]  # fmt: skip
        return HardCase(
            receipt=ReceiptBody.of(receipt),
            signature=sign(receipt, self.domain, self.chain.wallets["node"]),
            verdicts=tuple(VerdictBody.of(verdict) for verdict in verdicts),
            signatures=tuple(sign(v, self.domain, w) for v, w in zip(verdicts, wallets, strict=True)),
        )

    def enforce(self, case: HardCase) -> OnChainCaseState:
        """Process the case once, including all transactions on a chain that mines at once."""
        enforcement.enforce(self, case)
        self.sender.pump()
        for _ in range(6000):  # Even a node that mines at once responds shortly before it has mined.
            if not any(entry.state is IntentState.SIGNED for entry in self.outbox.list_pending()):
                break
            time.sleep(0.01)
            self.sender.pump()
        receipt = case.receipt.to_message()
        accusation = Accusation(
            receipt_hash=compute_struct_hash(receipt), pool=receipt.pool, node=receipt.node,
            contributor=receipt.contributor,
        )  # fmt: skip
        return self.chain.contracts.court.get_case(accusation).state


@pytest.fixture
def enforcer(chain) -> Iterator[Enforcer]:
    """Enforcement in a pool with one slash of 60 per contributor in a span of 7 days.

    The contributor has staked 100.
    """
    pool = chain.open_pool(unbond_window=SPAN, max_slashes=1)
    chain.join(pool)
    outbox = SqliteOutbox(":memory:")
    yield Enforcer(chain, pool, outbox)
    outbox.close()


def test_enforce__case_that_the_cap_refuses__is_proposed_in_the_next_span_and_executed(chain, enforcer: Enforcer):
    pool = enforcer.network.pool
    chain.advance(SPAN - chain.now() % SPAN + 10)  # early in a span, so that the next span is almost a whole span away
    first, second = (enforcer.build_case(make_receipt(chain, pool, task=task)) for task in (1, 2))
    assert enforcer.enforce(first) is OnChainCaseState.LOCKED
    assert enforcer.enforce(second) is OnChainCaseState.NONE  # SlashCapReached
    chain.advance(10)
    assert enforcer.enforce(first) is OnChainCaseState.SLASHED
    chain.advance(DAY)
    assert enforcer.enforce(second) is OnChainCaseState.NONE
    chain.advance(SPAN - chain.now() % SPAN)
    assert enforcer.enforce(second) is OnChainCaseState.LOCKED
    chain.advance(10)
    assert enforcer.enforce(second) is OnChainCaseState.SLASHED
    assert chain.contracts.stakes.stake_of(pool, BondKind.CONTRIBUTOR, chain.address("contributor")) == 0
