"""A headless Chromium that opens a page and reports what happened there: errors, requests, elements."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60.0
_ADDRESS = re.compile(r"DevTools listening on (ws://\S+)")


def find_chromium() -> str | None:
    """Return the path of Chromium or Chrome on this machine, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@dataclass(slots=True)
class OpenedPage:
    """What happened while a page was loaded."""

    complaints: list[str] = field(default_factory=list)
    """Messages of the console, exceptions, and blocked content."""
    requests: list[str] = field(default_factory=list)
    """URLs that the page asked for, itself included."""
    values: list[Any] = field(default_factory=list)
    """Values of the expressions that were evaluated."""


def open_page(page: Path, expressions: list[str], profile: Path) -> OpenedPage:
    """Load a file in headless Chromium, and evaluate expressions in it. `profile` is a folder for its settings."""
    with _start(profile) as address, connect(address, max_size=None) as socket:
        browser = _Connection(socket)
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            browser.ask(f"{domain}.enable", session)
        browser.ask("Page.navigate", session, url=page.as_uri())
        browser.await_event("Page.loadEventFired")
        opened = OpenedPage()
        for expression in expressions:
            found = browser.ask("Runtime.evaluate", session, expression=expression, returnByValue=True)
            opened.values.append(found["result"].get("value"))
        for event in browser.events:
            values = event["params"]
            if event["method"] == "Network.requestWillBeSent":
                opened.requests.append(values["request"]["url"])
            elif event["method"] == "Log.entryAdded":
                opened.complaints.append(values["entry"]["text"])
            elif event["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                opened.complaints.append(json.dumps(values))
        return opened


@contextmanager
def _start(profile: Path) -> Iterator[str]:
    """Start Chromium, and yield the address at which it takes commands."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"]
    command = [find_chromium() or "chromium", *options, f"--user-data-dir={profile}", "about:blank"]
    log = profile.with_suffix(".log")
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            deadline = time.monotonic() + SECONDS
            while not (found := _ADDRESS.search(log.read_text())):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield found[1]
        finally:
            process.terminate()
            process.wait(SECONDS)


class _Connection:
    """Commands to Chromium, and the events that it reported in between."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str = "", **params: object) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while (answer := self._receive()).get("id") != self._number:
            self.events += [answer] if "method" in answer else []
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def await_event(self, method: str) -> None:
        while not any(event["method"] == method for event in self.events):
            answer = self._receive()
            self.events += [answer] if "method" in answer else []

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(timeout=SECONDS))
        return message
