"""The demo's network, broken on purpose: crashes, an unreachable chain, a missing relay. Nothing is lost."""

import asyncio
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from covey.demo.demo_network import DemoNetwork
from covey.demo.participants import DemoOptions, Participants
from covey.demo.scenario import Demo
from covey.protocol.api.public import StatusView
from covey.runtime.http import find_free_ports
from tests.e2e.test_demo import run_demo
from tests.e2e.walk import Server
from tests.fakes.commands import invoke

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
IS_FULL = os.environ.get("COVEY_FULL") == "1"


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="covey-test-") as name:
        yield Path(name) / "net"


async def watch(demo: Demo, is_done: Callable[[StatusView], bool], seconds: float = 1200) -> StatusView:
    """Look until the condition holds, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status = await demo.look()
        if status is not None and is_done(status):
            return status
        await asyncio.sleep(0.1)
    raise AssertionError("the condition was not met in time")


class Gate:
    """A proxy between a worker and the coordinator that holds uploads and receipts until it is opened."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.opened = threading.Event()
        self.receipts: list[bytes] = []

    def build(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self._pass, methods=["GET", "POST", "PUT"])])

    async def _pass(self, request: Request) -> Response:
        body = await request.body()
        if request.url.path in ("/v1/uploads", "/v1/submissions"):
            await asyncio.to_thread(self.opened.wait, 600)
        if request.url.path == "/v1/submissions":
            self.receipts.append(body)
        headers = {k: v for k, v in request.headers.items() if k not in ("host", "content-length")}
        url = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        async with httpx.AsyncClient(base_url=self._upstream, timeout=600) as http:
            answer = await http.request(request.method, url, content=body, headers=headers)
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))


def put_gate(network: DemoNetwork, port: int) -> None:
    """Let all roles reach the coordinator through the gate's port. Requests are signed for the address they know."""
    gate = f"http://127.0.0.1:{port}"
    for name in ("coordinator", "worker-1", *network.participants.validators, "trainer"):
        file = network.participants.folder / f"{name}.toml"
        text = file.read_text()
        if name == "coordinator":
            file.write_text(text + f'authority = "127.0.0.1:{port}"\npublic_url = "{gate}"\n')
        else:
            file.write_text(text.replace(network.url, gate))


async def test_network__crashes_and_outages__loses_nothing_and_learns_the_same(folder):
    """With one worker and no staleness, the result depends only on the seed, whatever happens in between.

    The full run compares it with an undisturbed demo.
    """
    options = DemoOptions(steps=2, workers=1, cheats=0, max_staleness=0, seed=7)
    demo = Demo(DemoNetwork(Participants(folder, options), invoke))
    network = demo.network
    (port,) = find_free_ports(1)
    gate = Gate(network.url)
    server = Server(gate.build(), port)
    try:
        network.processes.prepare()
        demo.set_up_chain()
        put_gate(network, port)
        server.start()
        network.start_all()

        outgoing = folder / "worker-1" / "outgoing"
        deadline = time.monotonic() + 600
        while not list(outgoing.glob("*-*.json")):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        network.processes.kill("worker-1")  # between signing and sending
        (parcel,) = outgoing.glob("*-*.json")
        signed = json.loads(parcel.read_bytes())
        assert gate.receipts == []
        gate.opened.set()
        network.start("worker-1")
        await watch(demo, lambda status: status.step >= 1)

        assert network.anvil is not None
        os.kill(network.anvil.pid, signal.SIGSTOP)  # the chain is unreachable for longer than a request waits
        await asyncio.sleep(11)
        os.kill(network.anvil.pid, signal.SIGCONT)
        for name in ("jobs", "relay", "validator-1", "coordinator"):
            network.processes.kill(name)
            network.start(name)
        network.processes.kill("trainer")  # resumes from its checkpoint
        network.start("trainer")
        await demo.watch()
        await demo.settle()
        summary, failures = await demo.conclude()
        assert failures == []
        assert summary["rejected"] == {}

        receipts = [json.loads(body) for body in gate.receipts]
        assert receipts[0]["signature"] == signed["signature"]
        assert receipts[0]["receipt"] == signed["receipt"]
        signatures: dict[tuple[int, int], set[str]] = {}
        for kept in receipts:  # the request of a lost answer is repeated with the same receipt
            signatures.setdefault((kept["receipt"]["task"], kept["receipt"]["lease"]), set()).add(kept["signature"])
        assert [len(each) for each in signatures.values()] == [1] * len(signatures)
        assert len(signatures) >= 2 * 4
    finally:
        network.close()
        server.stop()

    if IS_FULL:
        arguments = ("--steps", "2", "--workers", "1", "--cheats", "0", "--max-staleness", "0", "--seed", "7")
        code, output, uneventful = await asyncio.to_thread(run_demo, folder.parent, *arguments)
        assert code == 0, output
        assert len(uneventful["policies"]) == 3
        assert summary["policies"] == uneventful["policies"]
        assert summary["reward"] == uneventful["reward"]
