"""Calls an ASGI application without a server."""

import os
from dataclasses import dataclass

from covey.runtime.file_sending import SEND_FILE


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes


async def ask(app, path, *, headers=(), method="GET", client="10.0.0.1", send_file=None):
    """Send one request, and return the response. `path` may contain a query.

    `send_file` replaces the extension that sends files. It may then leave the body incomplete.
    """
    path, _, query = path.partition("?")
    messages = []

    async def send(message):
        messages.append(message)

    async def read_file(part):
        messages.append({"body": os.pread(part.descriptor, part.size, part.offset)})
        return True

    scope = {
        "type": "http",
        "extensions": {SEND_FILE: send_file or read_file},
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
        "client": (client, 1),
    }
    await app(scope, None, send)
    start, *parts = messages
    assert start["type"] == "http.response.start"
    assert send_file or [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answered(start["status"], found, b"".join(bytes(part.get("body", b"")) for part in parts))
