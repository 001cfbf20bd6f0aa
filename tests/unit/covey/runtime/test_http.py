import asyncio
import contextlib
import socket
import subprocess
import sys

import httpx
import pytest
import uvloop

from covey.errors import OperatorError
from covey.runtime import http
from covey.runtime.http import find_free_ports, serve_http

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


async def hello(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})


async def test_serve_http__serves_until_stop():
    stop, bound, (port,) = asyncio.Event(), asyncio.Event(), find_free_ports(1)
    serving = asyncio.create_task(serve_http(hello, host="127.0.0.1", port=port, stop=stop, on_bound=bound.set))
    async with asyncio.timeout(HANG_S):
        await bound.wait()
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            assert (await client.get(f"http://127.0.0.1:{port}/")).text == "hello"
        stop.set()
        await serving
    with socket.socket() as again:
        assert again.connect_ex(("127.0.0.1", port)) != 0


async def test_serve_http__port_is_taken__operator_error_names_it():
    calls = []
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(OperatorError, match=f"address_in_use: cannot listen on 127.0.0.1:{port}"):
            await serve_http(
                hello, host="127.0.0.1", port=port, stop=asyncio.Event(), on_bound=lambda: calls.append("serves")
            )
    assert calls == [], "on_bound is not called for a server that does not serve"


async def test_serve_http__port_is_bound__calls_on_bound_before_the_first_request():
    stop, (port,), calls = asyncio.Event(), find_free_ports(1), []

    def note() -> None:
        with socket.create_connection(("127.0.0.1", port)):
            calls.append("serves")
        stop.set()

    await asyncio.wait_for(serve_http(hello, host="127.0.0.1", port=port, stop=stop, on_bound=note), HANG_S)
    assert calls == ["serves"]


def test_find_free_ports__ports__are_below_ephemeral_ports_and_can_be_listened_on():
    ports = find_free_ports(5)
    assert len(set(ports)) == 5
    assert max(ports) < 32_768
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))


def test_find_free_ports__ports_of_another_process__stay_reserved_until_it_ends():
    script = "from covey.runtime.http import find_free_ports; print(*find_free_ports(1), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        ports = range(port, port + 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(http, "_PORTS", ports)
            with pytest.raises(
                OperatorError, match=f"no_free_port: there are too few free ports from {port} to {port}"
            ):
                find_free_ports(1)
            socket.create_server(("127.0.0.1", port)).close()  # The owner's server listens in the same way.
            other.communicate("")
            assert find_free_ports(1) == [port]
            with pytest.raises(OperatorError, match="no_free_port"):
                find_free_ports(1)


def test_serve_http__uvloop_with_long_iterations__accepts_many_connections_in_each():
    async def count_iterations() -> int:
        stop, bound, (port,), iterations = asyncio.Event(), asyncio.Event(), find_free_ports(1), 0
        serve = serve_http(hello, host="127.0.0.1", port=port, stop=stop, on_bound=bound.set)
        serving, loop = asyncio.create_task(serve), asyncio.get_running_loop()
        await bound.wait()
        await asyncio.sleep(0.1)

        def spin() -> None:
            nonlocal iterations
            iterations += 1
            loop.call_soon(spin)

        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(200)]
            for client in clients:
                client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                client.setblocking(False)
            loop.call_soon(spin)
            answers = await asyncio.gather(*(loop.sock_recv(client, 12) for client in clients))
            found = iterations
        stop.set()
        await serving
        assert set(answers) == {b"HTTP/1.1 200"}
        return found

    assert uvloop.run(count_iterations()) < 100, "one in each iteration would take 200"
