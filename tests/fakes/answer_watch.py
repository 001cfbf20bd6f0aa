"""A guard for tests of the API: no answer has a status that the OpenAPI document does not describe for its route."""

import re
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI


class AnswerWatch:
    """ASGI middleware that notes the answers that the OpenAPI document of an application does not describe.

    Example: `AnswerWatch(api).undescribed` contains "POST /v1/uploads: 404" after such an answer.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._routes = list(_list_routes(app.openapi()))
        self.undescribed: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def look(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._note(scope["method"], scope["path"], message["status"])
            await send(message)

        await self._app(scope, receive, look)

    def _note(self, method: str, path: str, status: int) -> None:
        for route, pattern, statuses in self._routes:
            if route.startswith(f"{method} ") and pattern.fullmatch(path):
                if str(status) not in statuses:
                    self.undescribed.add(f"{route}: {status}")
                return


def _list_routes(document: dict[str, Any]) -> Iterator[tuple[str, re.Pattern[str], set[str]]]:
    """Yield the name of each route, the pattern of its path and its statuses. A key may contain slashes."""
    for path, methods in document["paths"].items():
        pattern = re.compile(re.sub(r"\{\w+\}", "[^/]+", path.replace("{key}", ".+")))
        for method, route in methods.items():
            yield f"{method.upper()} {path}", pattern, set(route["responses"])
