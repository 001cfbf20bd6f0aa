"""An HTTP server for an ASGI application, with limits for each connection, and a search for free ports."""

import asyncio
import random
import socket
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
from covey.runtime.recursion import limit_recursion


async def serve_http(
    app: object,
    *,
    host: str,
    port: int,
    stop: asyncio.Event,
    on_bound: Callable[[], None] = lambda: None,
    limits: ConnectionLimits | None = None,
    listener: socket.socket | None = None,
) -> None:
    """Serve an ASGI application until `stop` is set. Requests in progress then get one second to finish.

    `limits` sets the deadlines and the maximum number of connections. Peers that miss a deadline are disconnected.
    `on_bound` is called once this process has bound the port, and can log that the server is ready. `listener` is a
    listening socket that several processes share, and then `host` and `port` are not bound.
    Raises OperatorError("address_in_use") if the address cannot be bound.
    """

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # The role handles signals itself, so uvicorn must not.

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for each in sockets or ():
                each.listen(_BACKLOG)  # asyncio has set the kernel's backlog to ACCEPTED_AT_ONCE.
                self._acceptor = Acceptor(each, self._build_protocol)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            self._acceptor.close()
            await super().shutdown(sockets)

        def _build_protocol(self) -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

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
    bound = listener or listen(host, port)
    on_bound()
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stop.set()
    await serving
    await stopping


_BACKLOG = 2048
"""Number of connections that the kernel queues until they are accepted."""


class Acceptor:
    """Accepts many connections in one iteration of uvloop, beside a server that accepts one.

    A loop that is busy has few iterations, so that one connection in each would fill the kernel's queue. Connections
    that do not fit into it are answered only after many seconds.
    """

    def __init__(self, listener: socket.socket, build: Callable[[], asyncio.Protocol]) -> None:
        """`build` returns the protocol of a new connection. asyncio's own loop needs no help."""
        self._loop, self._build = asyncio.get_running_loop(), build
        self._listener: socket.socket | None = None
        self._opening: set[asyncio.Task[object]] = set()
        if not isinstance(self._loop, asyncio.SelectorEventLoop):
            self._listener = listener.dup()  # A loop has one reader for each descriptor.
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accept no more connections."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if self._listener is None:
                return
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return  # There are no more, or no descriptor is left for one.
            connection.setblocking(False)
            task = self._loop.create_task(self._loop.connect_accepted_socket(self._build, connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OperatorError("address_in_use") if the address cannot be bound.

    Uvicorn would exit the interpreter instead.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OperatorError(
            "address_in_use", f"cannot listen on {host}:{port}: {error.strerror}", fix="Choose a different host or port"
        ) from error


_PORTS = range(20_000, 32_768)
"""Range of ports to choose from. It is below the ephemeral ports: an outgoing connection could take one of those
before the server binds it.
"""


def find_free_ports(count: int) -> list[int]:
    """Return distinct free ports of 127.0.0.1. Raises OperatorError("no_free_port") if there are not enough.

    The ports are reserved until this process ends, because a socket stays bound to each of them. A server can still
    listen on the port, but no further call of this function returns it, in any process.
    """
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(ports) == count:
            break
        with socket.socket() as holder:
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                continue
            # Set only after bind, because with it the bind above would also succeed on a port that another call holds.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.detach()
        ports.append(port)
    if len(ports) < count:
        raise OperatorError(
            "no_free_port",
            f"there are too few free ports from {_PORTS.start} to {_PORTS.stop - 1}",
            fix="End the processes that listen on these ports",
        )
    return ports
