"""Scripts and styles of pages, compressed, and kept by browsers and proxies for an hour.

Pages name them with the version of Covey, so that a new version does not run old scripts.
"""

import os

from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

CACHE_CONTROL = "public, max-age=3600"


class _CachedFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = CACHE_CONTROL
        return response


def serve_assets(folder: os.PathLike[str]) -> ASGIApp:
    """Return an application for the files of a folder. Example: `app.mount("/assets", serve_assets(ASSETS))`."""
    return GZipMiddleware(_CachedFiles(directory=folder), minimum_size=1024, compresslevel=5)
