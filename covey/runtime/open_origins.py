"""Lets scripts of any web site read the public routes below `/v1`. They can send no credentials, and only GET."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_READ = [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", b"etag")]
_PREFLIGHT = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET"),
    (b"access-control-allow-headers", b"if-none-match"),
    (b"access-control-max-age", b"86400"),
]


class OpenOrigins:
    """ASGI middleware. Example: `app.add_middleware(OpenOrigins)`, outside whatever refuses requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await send({"type": "http.response.start", "status": 204, "headers": _PREFLIGHT})
            await send({"type": "http.response.body", "body": b""})
        elif scope["method"] != "GET":
            await self._app(scope, receive, send)
        else:

            async def allow(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message.get("headers", []), *_READ]
                await send(message)

            await self._app(scope, receive, allow)
