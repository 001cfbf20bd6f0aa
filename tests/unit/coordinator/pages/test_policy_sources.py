"""Which sources serve a policy, by real heads."""

import socket
import threading
import time
from contextlib import suppress

import pytest

from coordinator.pages import policy_sources
from coordinator.pages.policy_sources import PolicySources, PolicyWay, merge
from covey.protocol.head import Head, ServedPolicy, Way
from covey.protocol.ids import PoolId
from covey.runtime.http import find_free_ports
from tests.fakes.pool import make_hash

pytestmark = pytest.mark.unit
WHOLE = Way(manifest=make_hash("whole"), size=900)
DELTA = Way(manifest=make_hash("delta"), base=make_hash("policy 0"), size=40)


def build_head(*ways: Way) -> Head:
    return Head(pool=1, policies=(ServedPolicy(step=1, record=make_hash("policy 1"), ways=ways),))


def test_merge__two_sources__whole_ones_first_with_all_that_serve_them():
    found = merge({"http://origin": build_head(DELTA, WHOLE), "http://relay": build_head(DELTA)})
    assert found == {
        make_hash("policy 1"): (
            PolicyWay(is_delta=False, size=900, sources=("http://origin",)),
            PolicyWay(is_delta=True, size=40, sources=("http://origin", "http://relay")),
        )
    }


def test_refresh__nobody_answers__serves_nothing():
    (port,) = find_free_ports(1)
    sources = PolicySources(PoolId(1), [f"http://127.0.0.1:{port}"])
    sources.refresh()
    assert sources.find(make_hash("policy 1")) == ()


def test_refresh__source_that_sends_a_byte_now_and_then__is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policy_sources, "ANSWER_SECONDS", 0.3)
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while not ended.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=[listener])
        thread.start()
        sources = PolicySources(PoolId(1), [f"http://127.0.0.1:{listener.getsockname()[1]}"])
        started = time.monotonic()
        sources.refresh()
        ended.set()
        thread.join()
    assert time.monotonic() - started < 60, "it would go on for half an hour"
    assert sources.find(make_hash("policy 1")) == ()
