"""The signing client of the coordinator's API.

Errors are distinguished: a missing response or a 5xx is a TransientError, and a refusal is a ProtocolError with the
coordinator's code. A client with a wrong clock corrects it by the coordinator's clock, once per request.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Self
from urllib.parse import urlsplit

import httpx

from covey.errors import OperatorError, ProtocolError, TransientError
from covey.network.coordinator_answers import (
    MIN_BANDWIDTH,
    ClockError,
    DripError,
    dump_body,
    parse_body,
    parse_optional,
    read_bounded,
    to_error,
)
from covey.network.submission_parts import read_parts
from covey.protocol import http_signatures
from covey.protocol.api.common import ReceiptBody
from covey.protocol.api.operator import PardonRequest, PardonResponse, PauseRequest
from covey.protocol.api.overview import OverviewView
from covey.protocol.api.public import NodeDetail, PoolView, RewardView, StatusView, SubmissionDetail, SubmissionView
from covey.protocol.api.trainer import BatchOrder, BatchRequest, LearningReport
from covey.protocol.api.validator import (
    AttestRequest,
    AwaitingEpoch,
    CommitRequest,
    HardCase,
    HardCases,
    JudgeOrder,
    RevealOrder,
    RevealRequest,
    SignedVerdicts,
    TurnRequest,
    ValidationOrders,
    VerdictsRequest,
)
from covey.protocol.api.worker import (
    MAX_INLINE_BYTES,
    ClaimRequest,
    Heartbeat,
    RegistrationRequest,
    RegistrationResponse,
    ReturnRequest,
    SubmissionRequest,
    SubmissionResponse,
    TaskOrder,
    UploadGrant,
    UploadRequest,
)
from covey.protocol.eip712 import Signer
from covey.protocol.ids import Address, Hash, LeaseId, Step, TaskId
from covey.protocol.messages import Receipt
from covey.protocol.status import SubmissionState
from covey.runtime.urls import hide_secrets, is_public_url

MAX_RESPONSE_BYTES = 32 << 20
"""Maximum size of the coordinator's responses in bytes."""
_HEADERS = {"accept-encoding": "identity"}
"""Headers that refuse compression, because a compressed response could be far larger than the counted bytes."""


class CoordinatorClient:
    """Client of one coordinator with one key. Without a key (None), it can use only public routes.

    Example: `CoordinatorClient("http://127.0.0.1:8000", wallet, chain_id=31337)`.
    """

    def __init__(
        self,
        base_url: str,
        signer: Signer | None,
        *,
        chain_id: int,
        timeout_seconds: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._base_url, self._signer, self._chain_id, self._clock = base_url.rstrip("/"), signer, chain_id, clock
        self._authority = urlsplit(self._base_url).netloc
        self._offset = 0.0
        self._timeout = timeout_seconds
        self._http = httpx.AsyncClient(
            timeout=timeout_seconds, headers=_HEADERS, trust_env=False, follow_redirects=False
        )

    def now(self) -> float:
        """Return the coordinator's Unix time in seconds, estimated from the local clock.

        It is at most `http_signatures.SKEW_SECONDS` ahead of the coordinator's clock.
        """
        return self._clock() + self._offset

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- public routes

    async def get_pool(self) -> PoolView:
        """Return everything that a new participant needs to know about the pool."""
        return parse_body(PoolView, await self._get("/v1/pool"))

    async def get_status(self) -> StatusView:
        """Return an overview of the pool."""
        return parse_body(StatusView, await self._get("/v1/status"))

    async def get_overview(self) -> OverviewView:
        """Return the pool at a glance. The base URL must be that of the pages; see `find_pages`."""
        return parse_body(OverviewView, await self._get("/v1/overview"))

    async def find_pages(self) -> str:
        """Return the base URL of the pool's pages, to which the coordinator's `/` leads.

        It is this client's own base URL if the service there does not lead elsewhere.
        Raises ProtocolError("bad_answer") if the coordinator's link is not a valid URL.
        """
        request = self._http.build_request("GET", f"{self._base_url}/")
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._http.send(request, stream=True)
                await response.aclose()
        except (TimeoutError, httpx.HTTPError, OSError) as error:
            raise self._to_unreachable(request, type(error).__name__) from error
        if not response.is_redirect:
            return self._base_url
        url = str(response.headers.get("location", "")).rstrip("/")
        if not is_public_url(url):
            raise ProtocolError("bad_answer", "the coordinator's link to its pages is not a valid URL")
        return url

    async def get_node(self, node: Address) -> NodeDetail:
        """Return a node, and why it gets no task. Raises ProtocolError("no_node")."""
        return parse_body(NodeDetail, await self._get(f"/v1/nodes/{node}"))

    async def list_submissions(
        self,
        *,
        limit: int,
        contributor: Address | None = None,
        node: Address | None = None,
        state: SubmissionState | None = None,
        before: TaskId | None = None,
    ) -> list[SubmissionView]:
        """Return the newest submissions, newest first. A filter of None matches any value.

        `before` is the task of the last submission that is known. What follows it is returned.
        """
        filters = {"contributor": contributor, "node": node, "state": state, "before": before}
        return await read_parts(self._get, limit=limit, filters=filters)

    async def get_submission(self, receipt_hash: str) -> SubmissionDetail:
        """Return one submission by its receipt's hash, or by a prefix of the hash: "0x" and at least 8 digits."""
        return parse_body(SubmissionDetail, await self._get(f"/v1/submissions/{receipt_hash}"))

    async def get_reward(self, contributor: Address, epoch: int) -> RewardView:
        """Return the amount that a contributor had earned by the end of an epoch, with its proof."""
        return parse_body(RewardView, await self._get(f"/v1/rewards/{contributor}?epoch={epoch}"))

    async def get_public(self, key: str, *, max_bytes: int) -> bytes:
        """Return a public object. Raises ProtocolError("not_public") or ProtocolError("oversized")."""
        return await self._send(self._http.build_request("GET", f"{self._base_url}/v1/public/{key}"), max_bytes)

    # -- workers

    async def register(self, contract: str = "") -> RegistrationResponse:
        """Register the node with the coordinator, with the digest of its execution contract.

        Raises TransientError("no_validators") while too few validators have the contract.
        """
        return parse_body(
            RegistrationResponse, await self._post("/v1/nodes", dump_body(RegistrationRequest(contract=contract)))
        )

    async def send_heartbeat(self, *, instance: str, free_slots: int, cached_version: int | None) -> None:
        """Report the worker's state.

        Raises ProtocolError("another_instance") if a different worker with this key has recently sent a request.
        """
        body = Heartbeat(instance=instance, free_slots=free_slots, cached_version=cached_version)
        await self._post("/v1/heartbeat", dump_body(body))

    async def claim_task(
        self,
        *,
        instance: str,
        free_slots: int,
        cached_version: int | None,
        wait_seconds: float,
        holding: Sequence[int] = (),
    ) -> TaskOrder | None:
        """Wait at most `wait_seconds` for a lease. Returns None if there is none.

        If the node has a lease that is not in `holding`, because of a crash or a lost response, that lease is
        returned again. Raises the errors of `send_heartbeat`.
        """
        body = ClaimRequest(
            instance=instance,
            free_slots=free_slots,
            cached_version=cached_version,
            wait_seconds=wait_seconds,
            holding=tuple(holding),
        )
        return parse_optional(TaskOrder, await self._post("/v1/tasks/claim", dump_body(body), wait=wait_seconds))

    async def return_task(self, task: TaskId, lease: LeaseId) -> None:
        """Return a lease before it expires. It counts as dropped, and the task goes to another node at once."""
        await self._post("/v1/tasks/return", dump_body(ReturnRequest(task=task, lease=lease)))

    async def submit(self, receipt: Receipt, signature: str, file: bytes) -> SubmissionResponse:
        """Submit the receipt with its file. The call can be repeated unchanged.

        A file of more than MAX_INLINE_BYTES is uploaded to the coordinator's link first.
        """
        signed = ReceiptBody.of(receipt)
        if len(file) <= MAX_INLINE_BYTES:
            return await self._submit(SubmissionRequest(receipt=signed, signature=signature, file=file))
        request = UploadRequest(task=receipt.task, lease=receipt.lease, work_key=receipt.work_key, size=len(file))
        grant = parse_body(UploadGrant, await self._post("/v1/uploads", dump_body(request)))
        if grant.url is not None:
            await self.put_object(grant.url, file)
        return await self._submit(SubmissionRequest(receipt=signed, signature=signature))

    async def _submit(self, request: SubmissionRequest) -> SubmissionResponse:
        return parse_body(SubmissionResponse, await self._post("/v1/submissions", dump_body(request)))

    # -- validators

    async def claim_validations(
        self,
        *,
        wait_seconds: float,
        holding: Sequence[int] = (),
        free_turns: int = 1,
        free_replays: int = 1,
        contract: str = "",
    ) -> Sequence[JudgeOrder | RevealOrder]:
        """Wait for orders to reveal verdicts or, up to `free_turns` of them, for orders to judge submissions.

        At most `free_replays` of the latter are for whole replays.
        `contract` is the digest of this validator's execution contract. Returns an empty sequence if there are none.
        """
        request = TurnRequest(
            wait_seconds=wait_seconds,
            holding=tuple(holding),
            free_turns=free_turns,
            free_replays=free_replays,
            contract=contract,
        )
        answer = await self._post("/v1/validations/claim", dump_body(request), wait=wait_seconds)
        return parse_body(ValidationOrders, answer).orders

    async def commit_verdict(self, judgement: int, commitment: Hash) -> None:
        """Send the commitment to a verdict."""
        body = CommitRequest(judgement=judgement, commitment=commitment)
        await self._post("/v1/validations/commit", dump_body(body))

    async def reveal_verdict(self, request: RevealRequest) -> None:
        """Send a verdict with its salt and evidence, after all commitments are in."""
        await self._post("/v1/validations/reveal", dump_body(request))

    async def list_hard_cases(self) -> tuple[HardCase, ...]:
        """Return the cases that can be brought before SlashingCourt."""
        return parse_body(HardCases, await self._post("/v1/cases", b"")).cases

    async def find_awaiting_epoch(self) -> AwaitingEpoch | None:
        """Return the epoch whose header this validator is to sign. None if there is none, or if it has signed it."""
        return parse_optional(AwaitingEpoch, await self._post("/v1/epochs/awaiting", b""))

    async def attest(self, header_hash: Hash, signature: str) -> None:
        """Send the signature over a header. Raises ProtocolError("not_awaited") if its epoch awaits none any more."""
        await self._post("/v1/epochs/attest", dump_body(AttestRequest(header_hash=header_hash, signature=signature)))

    async def list_verdicts(self, receipts: Sequence[Hash]) -> SignedVerdicts:
        """Return all revealed verdicts on at most 64 receipts of epochs. Their signatures are not checked."""
        answer = await self._post("/v1/epochs/verdicts", dump_body(VerdictsRequest(receipts=tuple(receipts))))
        return parse_body(SignedVerdicts, answer)

    # -- the trainer

    async def claim_batch(self, step: Step, *, wait_seconds: float) -> BatchOrder | None:
        """Wait at most `wait_seconds` for the batch of a step. Returns None if it is not ready."""
        body = dump_body(BatchRequest(step=step, wait_seconds=wait_seconds))
        return parse_optional(BatchOrder, await self._post("/v1/batches/claim", body, wait=wait_seconds))

    async def report_learning(self, report: LearningReport) -> None:
        """Report whether the run can learn, the metrics of its newest step, and whether to pause new tasks."""
        await self._post("/v1/learning", dump_body(report))

    # -- the operator

    async def set_paused(self, is_paused: bool) -> None:
        """Pause new tasks, or assign them again. Raises ProtocolError("not_the_operator")."""
        await self._post("/v1/pause", dump_body(PauseRequest(is_paused=is_paused)))

    async def pardon(self, address: Address) -> PardonResponse:
        """Take back what suspends a contributor, or one of its nodes, named by its address."""
        return parse_body(PardonResponse, await self._post("/v1/pardons", dump_body(PardonRequest(address=address))))

    # -- objects by link

    async def get_object(self, url: str, *, max_bytes: int) -> bytes:
        """Download an object. Raises ProtocolError("oversized") if it is larger than `max_bytes`."""
        return await self._send(self._build_plain("GET", url), max_bytes)

    async def put_object(self, url: str, data: bytes) -> None:
        """Upload an object."""
        await self._send(self._build_plain("PUT", url, data), MAX_RESPONSE_BYTES)

    # -- requests

    async def _get(self, path: str) -> bytes:
        return await self._send(self._http.build_request("GET", self._base_url + path), MAX_RESPONSE_BYTES)

    async def _post(self, path: str, body: bytes, *, wait: float = 0.0) -> bytes:
        try:
            return await self._send(self._build(path, body, wait), MAX_RESPONSE_BYTES)
        except ClockError as error:
            self._offset = error.time - self._clock()
            return await self._send(self._build(path, body, wait), MAX_RESPONSE_BYTES)

    def _build_plain(self, method: str, url: str, data: bytes | None = None) -> httpx.Request:
        try:
            request = self._http.build_request(method, url, content=data)
        except httpx.InvalidURL as error:
            raise ProtocolError("bad_answer", "the coordinator returned a link that is not a valid URL") from error
        # httpx does not check the port and fails later with an error that is not its own. Another scheme would be
        # retried for ever.
        if request.url.scheme not in ("http", "https") or not request.url.host or (request.url.port or 0) > 65535:
            raise ProtocolError("bad_answer", "the coordinator returned a link that is not a valid URL")
        return request

    def _build(self, path: str, body: bytes, wait: float) -> httpx.Request:
        if self._signer is None:
            raise OperatorError(
                "no_key", f"{path} requires a signed request, but no key is set", fix="Set a key file with --key-file"
            )
        signed = http_signatures.SignedRequest(method="POST", authority=self._authority, path=path, query="", body=body)
        now, nonce = int(self.now()), secrets.token_urlsafe(18)
        headers = http_signatures.sign_request(signed, self._signer, chain_id=self._chain_id, now=now, nonce=nonce)
        headers["content-type"] = "application/json"
        timeout = httpx.Timeout(self._timeout + wait)
        return self._http.build_request("POST", self._base_url + path, content=body, headers=headers, timeout=timeout)

    async def _send(self, request: httpx.Request, max_bytes: int) -> bytes:
        # The timeout of httpx itself restarts with every byte.
        patience = float(request.extensions["timeout"]["read"])
        try:
            async with asyncio.timeout(patience + len(request.content) / MIN_BANDWIDTH):
                response = await self._http.send(request, stream=True)
            try:
                body = await read_bounded(response, max_bytes, patience)
            finally:
                await response.aclose()
        except DripError as error:
            raise self._to_unreachable(request, str(error)) from error
        except (httpx.HTTPError, OSError) as error:
            raise self._to_unreachable(request, type(error).__name__) from error
        if response.is_success:
            return body
        raise to_error(response.status_code, body)

    def _to_unreachable(self, request: httpx.Request, why: str) -> TransientError:
        is_own = str(request.url).startswith(f"{self._base_url}/")
        fix = (
            "Start the coordinator, or correct coordinator_url" if is_own else "Check that the object store is running"
        )
        message = f"{hide_secrets(str(request.url))} did not respond: {why}. {fix}"
        return TransientError("coordinator_unreachable", message)
