"""A coordinator in memory, for the loops of worker and validator. It passes the contract test of the real one."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.errors import ProtocolError
from covey.protocol import canonical, eip712
from covey.protocol.api.validator import JudgeOrder, RevealOrder, RevealRequest
from covey.protocol.api.worker import SubmissionResponse, TaskOrder
from covey.protocol.eip712 import Domain, Signer
from covey.protocol.ids import Hash
from covey.protocol.messages import Countersignature, Receipt


@dataclass(kw_only=True)
class FakeCoordinator:
    """The coordinator that one node sees.

    `orders` are given out in turn. `fail` is called before and after each submission.
    """

    node: str
    operator: Signer
    receipt_domain: Domain
    ledger_domain: Domain
    orders: list[TaskOrder] = field(default_factory=list)
    signed_at: int = 1000
    time: float = 1000.0
    instance: str = ""
    """Instance of the worker that was heard first."""
    fail: Callable[[str], None] = lambda _: None
    leased: dict[tuple[int, int], TaskOrder] = field(default_factory=dict)
    answers: dict[tuple[int, int], tuple[Receipt, SubmissionResponse]] = field(default_factory=dict)
    sent: list[tuple[Receipt, str, bytes]] = field(default_factory=list)
    heartbeats: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    returned: list[tuple[int, int]] = field(default_factory=list)

    def now(self) -> float:
        return self.time

    async def claim_task(
        self,
        *,
        instance: str,
        free_slots: int,
        cached_version: int | None,
        wait_seconds: float,
        holding: Sequence[int] = (),
    ) -> TaskOrder | None:
        await asyncio.sleep(0)
        self._hear(instance)
        self.claims.append({"free_slots": free_slots, "cached_version": cached_version, "holding": list(holding)})
        for (task, lease), order in self.leased.items():  # lost by a crash or with an answer, as far as can be seen
            if lease not in holding and (task, lease) not in self.answers:
                return order
        if not self.orders or (cached_version is not None and self.orders[0].policy_version > cached_version):
            return None
        order = self.orders.pop(0)
        self.leased[(order.task, order.lease)] = order
        return order

    async def return_task(self, task: int, lease: int) -> None:
        self.returned.append((task, lease))
        if self.leased.pop((task, lease), None) is None:
            raise ProtocolError("lease_expired", "no such lease", status=409)

    def _hear(self, instance: str) -> None:
        self.instance = self.instance or instance
        if instance != self.instance:
            raise ProtocolError("another_instance", f"worker {self.instance} was heard 0 s ago", status=409)

    async def send_heartbeat(self, *, instance: str, free_slots: int, cached_version: int | None) -> None:
        self._hear(instance)
        self.heartbeats.append({"free_slots": free_slots, "cached_version": cached_version})

    async def submit(self, receipt: Receipt, signature: str, file: bytes) -> SubmissionResponse:
        self.sent.append((receipt, signature, file))
        self.fail("before")
        key = (receipt.task, receipt.lease)
        if key not in self.leased:
            raise ProtocolError("unknown_task" if receipt.task > 999 else "lease_expired", "no such lease", status=409)
        if canonical.sha256(file) != receipt.work_key:
            raise ProtocolError("digest_mismatch", "the file does not have the hash that it was announced with")
        eip712.require_signer(receipt, self.receipt_domain, signature, receipt.node)
        if receipt.node != self.node:
            raise ProtocolError("not_your_task", "the receipt names another node", status=403)
        if key not in self.answers:
            self.answers[key] = (receipt, self._promise(receipt))
        known, answer = self.answers[key]
        if known != receipt:
            code = "equivocation" if known.work_key != receipt.work_key else "duplicate_submission"
            raise ProtocolError(code, "another receipt was given for this lease", status=409)
        self.fail("after")
        return answer

    def _promise(self, receipt: Receipt) -> SubmissionResponse:
        promise = Countersignature(
            receipt_hash=eip712.compute_struct_hash(receipt), signed_at=self.signed_at, due_by=self.signed_at + 64
        )
        return SubmissionResponse(
            **eip712.to_dict(promise), signature=eip712.sign(promise, self.ledger_domain, self.operator)
        )


@dataclass(kw_only=True)
class FakeJudging:
    """The coordinator that one validator sees: orders, files behind links, commitments and reveals."""

    orders: list[JudgeOrder | RevealOrder] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    commitments: dict[int, Hash] = field(default_factory=dict)
    reveals: list[RevealRequest] = field(default_factory=list)
    polls: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    """Arguments (holding, free_turns) of each poll."""
    contracts: list[str] = field(default_factory=list)
    """Execution contract of each poll."""
    pause: asyncio.Event | None = None
    """Event that polls wait for; None if they do not wait."""
    pause_begun: asyncio.Event = field(default_factory=asyncio.Event)
    fail: Callable[[str], None] = lambda _: None

    async def claim_validations(
        self,
        *,
        wait_seconds: float,
        holding: Sequence[int] = (),
        free_turns: int = 1,
        free_replays: int = 1,
        contract: str = "",
    ) -> Sequence[JudgeOrder | RevealOrder]:
        self.polls.append((tuple(holding), free_turns))
        self.contracts.append(contract)
        if self.pause is not None:
            self.pause_begun.set()
            await self.pause.wait()
        await asyncio.sleep(0)
        return [self.orders.pop(0)] if self.orders else []

    async def get_object(self, url: str, *, max_bytes: int) -> bytes:
        self.fail("get")
        if url not in self.files:
            raise ProtocolError("missing", f"{url} is not in the store", status=404)
        return self.files[url]

    async def commit_verdict(self, judgement: int, commitment: Hash) -> None:
        self.fail("commit")
        self.commitments[judgement] = commitment

    async def reveal_verdict(self, request: RevealRequest) -> None:
        self.fail("reveal")
        self.reveals.append(request)
