"""Clients of a coordinator that cost little: signed requests over plain sockets, for nodes and validators.

`main` runs in a process of its own and prints one line of JSON.  Requests of a flood are signed beforehand.
"""

import asyncio
import base64
import json
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from benchmarks.network.coordinator_pool import derive
from covey.chain.wallet import Wallet
from covey.protocol import canonical, eip712, http_signatures, messages
from covey.protocol.api.common import ReceiptBody, VerdictBody
from covey.protocol.eip712 import Domain
from covey.protocol.ids import Address, Hash, hash_from_bytes
from covey.protocol.messages import Receipt, Verdict

CHAIN_ID = 31337
FILE_BYTES = 4096
_JUDGING_S, _QUIET_S = 120.0, 3.0
"""Maximum number of seconds in which validators judge what is left, and seconds without a verdict after which nothing
is left.
"""
TURNS = 16
"""Turns that a validator has at once."""
_WAIT_S = 5.0


class Wire(asyncio.Protocol):
    """One kept HTTP connection.  Example: `status, body = await wire.send(request)`."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, port: int, *, source: str | None = None) -> "Wire":
        """Connect to a port of this machine, from the address `source` where it is given. Raises OSError."""
        own = None if source is None else (source, 0)
        _, wire = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port, local_addr=own)
        return wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has its methods, but not its class.

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._data[:end]).lower()
        _, _, length = head.partition(b"content-length: ")
        size = int(length.split(b"\r\n", 1)[0]) if length else 0
        if len(self._data) < end + 4 + size:
            return
        status, body = int(head[9:12]), bytes(self._data[end + 4 : end + 4 + size])
        self._data.clear()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((status, body))

    @property
    def is_open(self) -> bool:
        """Whether the server has not closed the connection."""
        return self._transport is not None

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and return the status and the body of the answer.

        Raises ConnectionError if the server has closed the connection, or does before it has answered.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the server closed the connection")
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


def build_signed(wallet: Wallet, authority: str, path: str, body: bytes) -> bytes:
    """Return the bytes of a signed POST request, valid for a minute."""
    request = http_signatures.SignedRequest(method="POST", authority=authority, path=path, query="", body=body)
    headers = http_signatures.sign_request(
        request, wallet, chain_id=CHAIN_ID, now=int(time.time()), nonce=secrets.token_urlsafe(18)
    )
    return build_request("POST", authority, path, body, headers)


def build_request(method: str, authority: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {authority}", f"content-length: {len(body)}"]
    lines += ["content-type: application/json", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Tally:
    """What the clients have seen."""

    statuses: dict[int, int] = field(default_factory=dict)
    """Number of answers by status."""
    durations: dict[str, list[float]] = field(default_factory=dict)
    """Seconds from request to answer, by kind of request."""
    submitted: list[float] = field(default_factory=list)
    """Times at which submissions were countersigned, in seconds of the monotonic clock."""
    judged: int = 0
    """Number of verdicts revealed."""
    judged_at: float = 0.0
    """Time of the newest one, in seconds of the monotonic clock."""
    problems: dict[str, int] = field(default_factory=dict)
    """Number of refusals by code."""

    def add(self, kind: str, started: float, status: int, body: bytes) -> None:
        """Count an answer."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.durations.setdefault(kind, []).append(time.monotonic() - started)
        if status >= 300:
            code = f"{kind}: {status} {body[:160].decode(errors='replace')}"
            self.problems[code] = self.problems.get(code, 0) + 1

    def encode(self) -> str:
        """Return the counts and percentiles as JSON."""
        percentiles = {kind: compute_percentiles(values) for kind, values in self.durations.items()}
        return json.dumps(
            {
                "statuses": self.statuses,
                "seconds": percentiles,
                "submitted": self.submitted,
                "judged": self.judged,
                "problems": dict(sorted(self.problems.items(), key=lambda pair: -pair[1])[:8]),
            }
        )


def compute_percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return n, the median, the 99th percentile and the maximum of some durations, in their unit."""
    ordered = sorted(values)
    median, high = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
    return {"n": len(ordered), "p50": median, "p99": high, "max": ordered[-1]}


async def flood(port: int, requests: Sequence[Sequence[bytes]], seconds: float, tally: Tally, kind: str) -> None:
    """Send the requests of each connection one after the other, for at most `seconds`."""
    deadline = time.monotonic() + seconds

    async def run(own: Sequence[bytes]) -> None:
        wire = await Wire.open(port)
        for request in own:
            started = time.monotonic()
            if started > deadline:
                break
            tally.add(kind, started, *await wire.send(request))
        wire.close()

    await asyncio.gather(*(run(own) for own in requests))


@dataclass(kw_only=True)
class Client:
    """A signing client on one connection."""

    port: int
    wallet: Wallet
    tally: Tally
    source: str | None = None
    """Address that it connects from. None: 127.0.0.1."""
    wire: Wire | None = None

    def close(self) -> None:
        """Close the connection. The next request opens another one."""
        if self.wire is not None:
            self.wire.close()
            self.wire = None

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Send a signed request.  Returns the status and the parsed answer."""
        data = json.dumps(body).encode()
        return await self.send(path, build_signed(self.wallet, f"127.0.0.1:{self.port}", path, data))

    async def send(self, kind: str, request: bytes) -> tuple[int, Any]:
        """Send a request. Raises OSError if the connection ends."""
        if self.wire is None or not self.wire.is_open:
            self.wire = await Wire.open(self.port, source=self.source)
        started = time.monotonic()
        try:
            status, answer = await self.wire.send(request)
        except OSError:
            self.close()
            raise
        self.tally.add(kind, started, status, answer)
        return status, json.loads(answer) if answer else None


async def run_node(port: int, number: int, asked: dict[str, Any], tally: Tally, deadline: float) -> None:
    """Claim tasks and submit files until the deadline, as one worker does."""
    client = Client(port=port, wallet=derive(f"node-{number}"), tally=tally)
    await client.post("/v1/nodes", {})
    claim = build_claim(number)
    while time.monotonic() < deadline:
        status, order = await client.post("/v1/tasks/claim", claim)
        if status == 200 and order is not None:
            await hand_in(client, order, asked, Address(asked["contributor"]))


def build_claim(number: int) -> dict[str, Any]:
    """Return the claim of a node, which waits for some seconds."""
    return {"instance": f"{number:032x}", "free_slots": 4, "cached_version": 0, "wait_seconds": _WAIT_S}


async def hand_in(client: Client, order: dict[str, Any], asked: dict[str, Any], contributor: Address) -> bool:
    """Submit the file and the receipt of a lease. Returns whether it was countersigned."""
    file = secrets.token_bytes(FILE_BYTES)
    work_key = canonical.sha256(file)
    receipt = Receipt(
        pool=asked["pool"],
        task=order["task"],
        lease=order["lease"],
        node=client.wallet.address,
        contributor=contributor,
        policy_version=order["policy_version"],
        work_key=work_key,
        groups=order["groups"],
        units=8,
        deadline=int(time.time()) + 86_400,
    )
    domain = Domain(chain_id=CHAIN_ID, contract=Address(asked["court"]))
    signature = eip712.sign(receipt, domain, client.wallet)
    body = {
        "receipt": ReceiptBody.of(receipt).model_dump(mode="json"),
        "signature": signature,
        "file": base64.urlsafe_b64encode(file).decode(),
    }
    status, _ = await client.post("/v1/submissions", body)
    if status == 200:
        client.tally.submitted.append(time.monotonic())
    return status == 200


async def run_validator(
    port: int, number: int, asked: dict[str, Any], tally: Tally, is_over: Callable[[], bool]
) -> None:
    """Accept all work until it is over, with several turns at once."""
    wallet = derive(f"validator-{number}")
    domain = Domain(chain_id=CHAIN_ID, contract=Address(asked["court"]))
    polling = Client(port=port, wallet=wallet, tally=tally)
    idle: list[Client] = []
    verdicts: dict[int, dict[str, Any]] = {}
    """Verdicts that are not revealed yet, by judgement."""
    sending: set[asyncio.Task[None]] = set()

    async def send(path: str, body: dict[str, Any]) -> None:
        client = idle.pop() if idle else Client(port=port, wallet=wallet, tally=tally)
        try:
            status, _ = await client.post(path, body)
            if path.endswith("reveal") and status == 204:
                tally.judged, tally.judged_at = tally.judged + 1, time.monotonic()
        except OSError:
            pass  # The connection ended, and the coordinator offers the turn again.
        finally:
            idle.append(client)

    while not is_over():
        if len(sending) >= TURNS:  # A poll without room for a turn would wait for verdicts to reveal.
            await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
        working = [int(task.get_name()) for task in sending]
        room = max(0, TURNS - len(working))
        want = {"wait_seconds": _WAIT_S, "holding": working, "free_turns": room, "free_replays": max(1, room)}
        status, answer = await polling.post("/v1/validations/claim", want)
        if status != 200:
            continue
        for order in answer["orders"]:
            turn = order["judgement"]
            if order["kind"] == "judge":
                verdicts[turn] = reveal = _build_reveal(order, wallet, domain, asked["pool"])
                waiting = send("/v1/validations/commit", {"judgement": turn, "commitment": reveal.pop("commitment")})
            elif turn in verdicts:
                waiting = send("/v1/validations/reveal", verdicts.pop(turn))
            else:
                continue
            sending.add(task := asyncio.create_task(waiting, name=str(turn)))
            task.add_done_callback(sending.discard)
    await asyncio.gather(*sending)


def _build_reveal(order: dict[str, Any], wallet: Wallet, domain: Domain, pool: int) -> dict[str, Any]:
    receipt = ReceiptBody.model_validate(order["receipt"]).to_message()
    evidence = json.dumps({"live_groups": receipt.groups}, separators=(",", ":"))
    verdict = Verdict(
        pool=pool,  # type: ignore[arg-type]
        receipt_hash=eip712.compute_struct_hash(receipt),
        work_key=receipt.work_key,
        validator=wallet.address,
        outcome=1,
        reason=0,
        severity=0,
        units=receipt.units,
        evidence_hash=canonical.sha256(evidence.encode()),
        deadline=int(time.time()) + 86_400,
    )
    salt: Hash = hash_from_bytes(secrets.token_bytes(32))
    digest = eip712.compute_digest(verdict, domain)
    return {
        "judgement": order["judgement"],
        "verdict": VerdictBody.of(verdict).model_dump(mode="json"),
        "signature": eip712.sign(verdict, domain, wallet),
        "salt": salt,
        "evidence": evidence,
        "commitment": messages.compute_commitment(digest, salt),
    }


async def measure_heartbeats(asked: dict[str, Any], tally: Tally) -> None:
    """Flood a route with the heartbeats of `nodes` nodes, signed beforehand where `signed` says so."""
    port, path, each = asked["port"], asked["path"], asked["requests"]
    requests = []
    for number in range(asked["nodes"]):
        wallet, authority = derive(f"node-{number}"), f"127.0.0.1:{port}"
        body = json.dumps({"instance": f"{number:032x}", "free_slots": 1, "cached_version": 0}).encode()
        if asked["signed"]:
            client = Client(port=port, wallet=wallet, tally=Tally())
            await client.post("/v1/nodes", {})
            requests.append([build_signed(wallet, authority, path, body) for _ in range(each)])
        else:
            requests.append([build_request("POST", authority, path, body)] * each)
    await _await_start()
    await flood(port, requests, asked["seconds"], tally, "heartbeat")


async def measure_submissions(asked: dict[str, Any], tally: Tally) -> None:
    """Have nodes submit for some seconds, and validators judge until nothing is left."""
    await _await_start()
    started = time.monotonic()
    deadline, last = started + asked["seconds"], started + asked["seconds"] + _JUDGING_S

    def is_over() -> bool:
        now = time.monotonic()
        return bool(now > last or now - max(deadline, tally.judged_at) > _QUIET_S)

    runs: list[Awaitable[None]] = [
        run_node(asked["port"], number, asked, tally, deadline) for number in range(asked["nodes"])
    ]
    runs += [run_validator(asked["port"], number, asked, tally, is_over) for number in range(asked["validators"])]
    await asyncio.gather(*runs)


async def _await_start() -> None:
    """Say that all is prepared, and wait for a line on standard input."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


KINDS: dict[str, Callable[[dict[str, Any], Tally], Coroutine[Any, Any, None]]] = {
    "heartbeats": measure_heartbeats,
    "submissions": measure_submissions,
}


def main() -> None:
    """Run the clients that the first argument describes, as JSON."""
    asked, tally = json.loads(sys.argv[1]), Tally()
    asyncio.run(KINDS[asked["kind"]](asked, tally))
    print(tally.encode(), flush=True)


if __name__ == "__main__":
    main()
