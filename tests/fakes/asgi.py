"""Calls an ASGI application without a server."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message

from covey.runtime.file_sending import SEND_FILE, FilePart, SendFile


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes


async def ask(
    app: ASGIApp,
    path: str,
    *,
    headers: Iterable[tuple[str, str]] = (),
    method: str = "GET",
    client: str = "10.0.0.1",
    send_file: SendFile | None = None,
) -> Answered:
    """Send one request, and return the response. `path` may contain a query.

    `send_file` replaces the extension that sends files. It may then leave the body incomplete.
    """
    path, _, query = path.partition("?")
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def read_file(part: FilePart) -> bool:
        messages.append({"body": os.pread(part.descriptor, part.size, part.offset)})
        return True

    async def receive() -> Message:
        raise NotImplementedError  # No application of the tests reads a body.

    scope = {
        "type": "http",
        "extensions": {SEND_FILE: send_file or read_file},
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
        "client": (client, 1),
    }
    await app(scope, receive, send)
    start, *parts = messages
    assert start["type"] == "http.response.start"
    assert send_file or [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answered(start["status"], found, b"".join(bytes(part.get("body", b"")) for part in parts))
