"""Nodes and validators that cost little and never give up: they send what they have signed until it is answered."""

import asyncio
import secrets
from dataclasses import dataclass, field

from covey.chain.wallet import Wallet
from covey.errors import CoveyError, ProtocolError, TransientError
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol import canonical, eip712, messages
from covey.protocol.api.common import VerdictBody
from covey.protocol.api.validator import JudgeOrder, RevealRequest
from covey.protocol.api.worker import SubmissionResponse
from covey.protocol.eip712 import Domain
from covey.protocol.ids import Address, Hash, PoolId, hash_from_bytes
from covey.protocol.messages import Receipt, Verdict
from covey.protocol.verdict import Decision, Reason

UNITS = 8
"""Work units of each submission."""
PAUSE_S = 0.2
"""Pause in seconds after an error that may pass, and of a node between two tasks."""


@dataclass(kw_only=True)
class Record:
    """What the actors were promised."""

    promises: dict[Hash, SubmissionResponse] = field(default_factory=dict)
    """Countersignatures by receipt hash. What is in here must be in an epoch."""
    refusals: dict[str, int] = field(default_factory=dict)
    """Number of refusals by code and message."""
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with the first promise."""
    is_working: bool = True
    """Whether nodes claim further tasks."""
    is_over: bool = False
    silent: set[Address] = field(default_factory=set)
    """Validators that take orders and send nothing."""

    def refuse(self, error: CoveyError) -> None:
        """Count an error."""
        what = f"{error.code}: {error.message[:100]}"
        self.refusals[what] = self.refusals.get(what, 0) + 1


@dataclass(frozen=True, kw_only=True)
class Network:
    """Where the actors find the coordinator, and what they sign for."""

    url: str
    chain_id: int
    pool: PoolId
    court: Address
    contributor: Address
    record: Record

    def open(self, wallet: Wallet) -> CoordinatorClient:
        """Open a client of one key."""
        return CoordinatorClient(self.url, wallet, chain_id=self.chain_id)

    @property
    def domain(self) -> Domain:
        """Domain of receipts and verdicts."""
        return Domain(chain_id=self.chain_id, contract=self.court)


async def run_node(network: Network, wallet: Wallet, *, instance: str = "") -> None:
    """Claim tasks and hand files in until the record says that it is enough."""
    record, instance = network.record, instance or secrets.token_hex(16)
    async with network.open(wallet) as client:
        while record.is_working:
            try:
                await client.register()
                break
            except CoveyError as error:
                record.refuse(error)
                await asyncio.sleep(PAUSE_S)
        while record.is_working:
            try:
                task = await client.claim_task(instance=instance, free_slots=4, cached_version=None, wait_seconds=2.0)
            except CoveyError as error:
                record.refuse(error)
                await asyncio.sleep(PAUSE_S)
                continue
            if task is None:
                continue
            file = secrets.token_bytes(512)
            receipt = Receipt(
                pool=network.pool,
                task=task.task,
                lease=task.lease,
                node=wallet.address,
                contributor=network.contributor,
                policy_version=task.policy_version,
                work_key=canonical.sha256(file),
                groups=task.groups,
                units=UNITS,
                deadline=int(client.now()) + 86_400,
            )
            await _hand_in(client, record, receipt, eip712.sign(receipt, network.domain, wallet), file)
            await asyncio.sleep(PAUSE_S)


async def _hand_in(client: CoordinatorClient, record: Record, receipt: Receipt, signature: str, file: bytes) -> None:
    while not record.is_over:
        try:
            answer = await client.submit(receipt, signature, file)
        except TransientError as error:
            record.refuse(error)
            await asyncio.sleep(PAUSE_S)
        except ProtocolError as error:  # It is refused for good: too old, or its lease is over.
            record.refuse(error)
            return
        else:
            record.promises[answer.receipt_hash] = answer
            record.has_begun.set()
            return


async def run_validator(network: Network, wallet: Wallet, decide: "Decider") -> None:
    """Judge and reveal until the end. Commitments are kept, as a real validator keeps them on disk."""
    record, signed = network.record, dict[int, RevealRequest]()
    async with network.open(wallet) as client:
        while not record.is_over:
            try:
                for order in await client.claim_validations(wait_seconds=2.0, free_turns=4):
                    if wallet.address in record.silent:
                        await asyncio.sleep(PAUSE_S)  # Orders of turns that it has taken come again at once.
                    elif isinstance(order, JudgeOrder):
                        request = signed.get(order.judgement) or _sign(
                            network, wallet, order, decide(order.receipt.task)
                        )
                        signed[order.judgement] = request
                        digest = eip712.compute_digest(request.verdict.to_message(), network.domain)
                        await client.commit_verdict(order.judgement, messages.compute_commitment(digest, request.salt))
                    elif order.judgement in signed:
                        await client.reveal_verdict(signed[order.judgement])
            except CoveyError as error:
                record.refuse(error)
                await asyncio.sleep(PAUSE_S)


class Decider:
    """Rejects the work of one in `every` tasks, as all validators do alike."""

    def __init__(self, *, every: int) -> None:
        self._every = every

    def __call__(self, task: int) -> Decision:
        return Decision.REJECT if task % self._every == 0 else Decision.ACCEPT


def _sign(network: Network, wallet: Wallet, order: JudgeOrder, decision: Decision) -> RevealRequest:
    receipt = order.receipt.to_message()
    evidence = canonical.to_bytes({"live_groups": receipt.groups, "by": wallet.address})
    reason = Reason.REWARD if decision is Decision.REJECT else Reason.NONE
    verdict = Verdict(
        pool=network.pool,
        receipt_hash=eip712.compute_struct_hash(receipt),
        work_key=receipt.work_key,
        validator=wallet.address,
        outcome=int(decision),
        reason=int(reason),
        severity=int(reason.severity),
        units=receipt.units if decision is Decision.ACCEPT else 0,
        evidence_hash=canonical.sha256(evidence),
        deadline=receipt.deadline,
    )
    return RevealRequest(
        judgement=order.judgement,
        verdict=VerdictBody.of(verdict),
        signature=eip712.sign(verdict, network.domain, wallet),
        salt=hash_from_bytes(secrets.token_bytes(32)),
        evidence=evidence.decode(),
    )
