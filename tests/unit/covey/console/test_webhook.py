"""A webhook that is slow, dead or too slow delays nobody."""

import json
import threading
import time

import pytest

from covey.console.webhook import MAX_WAITING, Webhook
from covey.errors import TransientError

pytestmark = pytest.mark.unit
URL = "http://hook"


class Server:
    """Takes lines once `open` is set."""

    def __init__(self) -> None:
        self.open, self.asked = threading.Event(), threading.Event()
        self.got: list[str] = []
        self.is_dead = False

    def __call__(self, url: str, data: bytes) -> None:
        self.asked.set()
        self.open.wait(20)
        if self.is_dead:
            raise TransientError("chain_unreachable", "gone")
        self.got.append(data.decode())


def test_put__server_hangs__returns_at_once_and_close_sends_the_rest_in_order():
    server, reports = Server(), []
    webhook = Webhook(URL, report=reports.append, post=server)
    begun = time.monotonic()
    for number in range(5):
        webhook.put(f"line {number}")
    assert time.monotonic() - begun < 5
    server.open.set()
    webhook.close()
    assert (server.got, reports) == ([f"line {number}" for number in range(5)], [])


def test_put__too_many_wait__drops_the_oldest_and_says_so():
    server, reports = Server(), []
    webhook = Webhook(URL, report=reports.append, post=server)
    webhook.put("first")
    assert server.asked.wait(20)  # It is being sent, so it is not among those that wait.
    for number in range(MAX_WAITING + 3):
        webhook.put(f"line {number}")
    server.open.set()
    webhook.close()
    note = json.loads(server.got[1])
    assert (note["event"], note["code"]) == ("webhook", "dropped")
    assert note["text"].startswith("3 older lines were dropped")
    assert server.got[0] == "first"
    assert server.got[2:] == [f"line {number}" for number in range(3, MAX_WAITING + 3)]
    assert reports == ["the webhook is too slow, so its oldest lines are dropped"]


def test_close__server_hangs__gives_up_at_the_deadline_and_says_what_is_lost():
    server, reports = Server(), []
    with Webhook(URL, report=reports.append, post=server, flush_seconds=0.1) as webhook:
        webhook.put("first")
        webhook.put("second")
    assert reports == ["the webhook did not take the last 2 lines in time"]
    server.open.set()


def test_put__server_is_dead__each_line_is_reported_and_the_next_is_tried():
    server, reports = Server(), []
    server.is_dead = True
    server.open.set()
    with Webhook(URL, report=reports.append, post=server) as webhook:
        webhook.put("first")
        webhook.put("second")
    assert reports == ["the webhook did not take a line: gone"] * 2
