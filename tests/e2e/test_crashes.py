"""The demo's network, broken on purpose: crashes, a chain that is away, a relay that is missing.  Nothing is lost."""

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from covey.demo.cast import Cast, DemoOptions
from covey.demo.report import build_summary, list_failures
from covey.demo.run import Demo
from covey.demo.stage import Stage
from covey.protocol.wire import StatusView
from tests.e2e.walking import Server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="covey-test-") as name:
        yield Path(name) / "net"


async def watch(demo: Demo, is_done: Callable[[StatusView], bool], seconds: float = 300) -> StatusView:
    """Look until the condition holds; bounded."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status = await demo.look()
        if status is not None and is_done(status):
            return status
        await asyncio.sleep(0.1)
    raise AssertionError("the condition did not come")


async def test_network__crashes_and_outages__finishes_and_loses_nothing(folder):
    options = DemoOptions(steps=5, workers=2, cheats=1)
    demo = Demo(Stage(Cast(folder, options)))
    stage = demo.stage
    try:
        demo.set_up()
        await watch(demo, lambda status: status.step >= 1)
        stage.processes.kill("worker-1")  # a worker dies and comes back
        stage.start("worker-1")
        await watch(demo, lambda status: status.step >= 2)
        assert stage.anvil is not None
        os.kill(stage.anvil.pid, signal.SIGSTOP)  # the chain is away for ten seconds
        await asyncio.sleep(10)
        os.kill(stage.anvil.pid, signal.SIGCONT)
        for name in ("jobs", "relay", "validator-1", "coordinator"):
            stage.processes.kill(name)
            stage.start(name)
        step = (await watch(demo, lambda status: status.step >= 2)).step
        await watch(demo, lambda status: status.step > step)
        stage.processes.kill("trainer")  # resumes from its checkpoint
        stage.start("trainer")
        await demo.watch()
        await demo.settle()
        status = await stage.client.get_status()
        submissions = await stage.client.list_submissions(limit=10_000)
        summary = build_summary(
            demo.record,
            stage.cast,
            stage.contracts,
            status=status,
            submissions=submissions,
            seconds=demo.screen.seconds,
            processes=len(stage.processes.running),
        )
        assert list_failures(summary, stage.cast, status=status, submissions=submissions) == []
        await stage.client.close()
    finally:
        stage.close()


class Gate:
    """A proxy between a worker and the coordinator that holds uploads until it is opened."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.held = asyncio.Event()
        self.is_open = False
        self.receipts: list[bytes] = []

    def build(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self._pass, methods=["GET", "POST", "PUT"])])

    async def _pass(self, request: Request) -> Response:
        body = await request.body()
        if request.url.path == "/v1/uploads" and not self.is_open:
            self.held.set()
            await asyncio.sleep(60)
        if request.url.path == "/v1/submissions":
            self.receipts.append(body)
        headers = {k: v for k, v in request.headers.items() if k not in ("host", "content-length")}
        url = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        async with httpx.AsyncClient(base_url=self._upstream, timeout=30) as http:
            answer = await http.request(request.method, url, content=body, headers=headers)
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))


async def test_worker__killed_between_signing_and_sending__sends_the_same_receipt(folder):
    from covey.runtime import find_free_ports

    options = DemoOptions(steps=1, workers=1, cheats=0, max_staleness=0)
    demo = Demo(Stage(Cast(folder, options)))
    stage = demo.stage
    (port,) = find_free_ports(1)
    gate = Gate(stage.url)
    server = Server(gate.build(), port)
    try:
        demo.set_up_chain()
        for name in ("coordinator", "worker-1"):  # requests are signed for the address that the worker knows
            file = folder / f"{name}.toml"
            text = file.read_text()
            if name == "coordinator":
                text += f'authority = "127.0.0.1:{port}"\npublic_url = "http://127.0.0.1:{port}"\n'
            file.write_text(
                text.replace(f'coordinator_url = "{stage.url}"', f'coordinator_url = "http://127.0.0.1:{port}"')
            )
        for name in (*stage.cast.validators, "trainer"):
            file = folder / f"{name}.toml"
            file.write_text(file.read_text().replace(stage.url, f"http://127.0.0.1:{port}"))
        server.start()
        stage.start_all()
        outgoing = folder / "worker-1" / "outgoing"
        deadline = time.monotonic() + 120
        while not list(outgoing.glob("*-*.json")):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        stage.processes.kill("worker-1")
        (parcel,) = outgoing.glob("*-*.json")
        signed = json.loads(parcel.read_bytes())
        assert gate.receipts == []
        gate.is_open = True
        stage.start("worker-1")
        await demo.watch()
        first = json.loads(gate.receipts[0])
        assert first["signature"] == signed["signature"]
        assert first["receipt"] == signed["receipt"]
        status = await stage.client.get_status()
        assert status.reasons == {}
        assert [row["suspended"] for row in status.nodes.values()] == [""]
        leases = [(r["receipt"]["task"], r["receipt"]["lease"]) for r in map(json.loads, gate.receipts)]
        assert len(leases) == len(set(leases)) == 4
        await stage.client.close()
    finally:
        stage.close()
        server.stop()
