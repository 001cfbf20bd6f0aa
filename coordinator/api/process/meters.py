"""Counts and durations of requests of the API, for Prometheus."""

import time
from collections.abc import Iterator

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covey.runtime.prometheus import LATENCY_SECONDS


class Meters:
    """Example: `meters.note_answer("GET /v1/pool", status=200, seconds=0.003)`."""

    def __init__(self) -> None:
        self.answers = Counter("covey_answers", "Answers by class of status.", ["status"], registry=None)
        self.refusals = Counter(
            "covey_refusals", "Requests that were refused before their body was read.", ["code"], registry=None
        )
        self.request_seconds = Histogram(
            "covey_request_seconds",
            "Duration of a request, by route. A long poll includes its wait.",
            ["route"],
            buckets=LATENCY_SECONDS,
            registry=None,
        )
        self.polls = Gauge("covey_polls", "Nodes that wait for a task.", multiprocess_mode="sum", registry=None)
        self.polls.set(0)  # An earlier process of this name may have left another value.
        self._answers: dict[int, Counter] = {}
        """Counters by the first digit of the status. A look-up by label would take a lock."""
        self._routes: dict[str, Histogram] = {}

    def __iter__(self) -> Iterator[Collector]:
        """Iterate over all metrics."""
        yield from (self.answers, self.refusals, self.request_seconds, self.polls)

    async def measure(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an application answer a request, and count the answer."""
        status, begun = 500, time.monotonic()

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, note)
        finally:
            self.note_answer(_name_route(scope), status=status, seconds=time.monotonic() - begun)

    def note_answer(self, route: str, *, status: int, seconds: float) -> None:
        """Count an answer. `route` is a method and a path with the names of its parameters: "GET /v1/nodes/{node}"."""
        kind = status // 100
        answers = self._answers.get(kind)
        if answers is None:
            answers = self._answers[kind] = self.answers.labels(f"{kind}xx")
        durations = self._routes.get(route)
        if durations is None:
            durations = self._routes[route] = self.request_seconds.labels(route)
        answers.inc()
        durations.observe(seconds)


def _name_route(scope: Scope) -> str:
    """Return the method and the path of the route that has answered. Peers choose no part of it."""
    route = scope.get("route")
    return "none" if route is None else f"{scope['method']} {route.path}"
