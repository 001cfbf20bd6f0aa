"""Serving HTTP: an ASGI application with limits on each connection, and ports on this machine."""

import asyncio
import random
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn

from covey.errors import OperatorError
from covey.runtime.connections import (
    ACCEPTED_AT_ONCE,
    ConnectionLimits,
    Gate,
    GuardedProtocol,
    compute_cap,
    raise_descriptor_limit,
)

RECURSION_LIMIT = 1000


def limit_recursion() -> None:
    """Python's own limit again: a library on the way raises it so far that deeply nested JSON overflows the stack.

    Called once all imports are done, by whoever is about to read what strangers send.
    """
    sys.setrecursionlimit(RECURSION_LIMIT)


async def serve_http(
    app: object,
    *,
    host: str,
    port: int,
    stop: asyncio.Event,
    on_bound: Callable[[], None] = lambda: None,
    limits: ConnectionLimits | None = None,
) -> None:
    """Serve an ASGI application until `stop` is set; requests under way get a second to finish.

    `limits` says what a connection may cost; slower peers are cut off.

    `on_bound` is called once the port is this process's own, which is the moment to log that it serves.
    Raises OperatorError("address_in_use") when another process holds the port.
    """

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # signals are ours

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for each in sockets or ():
                each.listen(_BACKLOG)  # asyncio has set it to ACCEPTED_AT_ONCE

    limits = limits or ConnectionLimits()
    gate = Gate(limits, compute_cap(limits, raise_descriptor_limit(limits)))
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        http=partial(GuardedProtocol, gate=gate),  # type: ignore[arg-type]
        ws="none",
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=limits.idle_s,
    )
    server = Server(config)
    limit_recursion()
    bound = listen(host, port)
    on_bound()
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stop.set()
    await serving
    await stopping


_BACKLOG = 2048
"""Connections that the kernel keeps until they are accepted."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raise OperatorError("address_in_use").  Uvicorn would end the interpreter instead."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OperatorError(
            "address_in_use", f"cannot listen on {host}:{port}: {error.strerror}", fix="Choose another host or port"
        ) from error


_PORTS = range(20_000, 32_768)
"""Below those that systems give to outgoing connections: one of these could take a port before its server does."""


def find_free_ports(count: int) -> list[int]:
    """Distinct ports of 127.0.0.1 that nobody has; raise OperatorError("no_free_port").

    They are the caller's until its process ends: each stays bound by a socket beside which a server may listen, but
    which keeps other callers away, those in other processes too.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        with socket.socket() as holder:
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                continue
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: others must not share it like this
            holder.detach()
        found.append(port)
    if len(found) < count:
        raise OperatorError(
            "no_free_port", f"no port of {_PORTS.start} to {_PORTS.stop - 1} is free", fix="End what listens there"
        )
    return found
