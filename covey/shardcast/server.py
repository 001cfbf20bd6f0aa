"""Origin and relay: the same small HTTP application over a ShardStore.

GET /policies/{pool}/{step} and GET /shards/{sha256}?pool=&step=.  A relay fetches what it lacks from its upstream,
checks every shard's hash before it keeps or serves it, and serves one shard while the next still arrives.
"""

import asyncio
import hashlib
import re
import secrets
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from covey.errors import ProtocolError, TransientError
from covey.log import get_logger
from covey.protocol import canonical
from covey.protocol.ids import Hash, is_hash
from covey.protocol.manifest import MAX_MANIFEST_BYTES, Manifest, Shard
from covey.shardcast.store import KEPT_POLICIES, Retention, ShardStore
from covey.urls import hide_secrets

_NUMBER = re.compile("[0-9]{1,18}")


class Mirror:
    """What a relay knows of its upstream.  Only shards of a manifest that it has seen are ever fetched."""

    def __init__(self, store: ShardStore, upstream: str, *, keep: int = KEPT_POLICIES) -> None:
        """`keep`: newest policies that stay here; an older one is fetched again for who asks for it."""
        self._store, self._upstream, self._keep = store, upstream.rstrip("/"), keep
        self._http = httpx.AsyncClient(timeout=30, headers={"accept-encoding": "identity"}, trust_env=False)
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._shards: dict[Hash, Shard] = {}

    async def close(self) -> None:
        await self._http.aclose()

    async def require_manifest(self, pool: int, step: int) -> None:
        """Have the manifest on disk; raise ProtocolError("not_found") or TransientError."""
        path = self._store.get_manifest_path(pool, step)
        if path.exists():
            self._remember(Manifest.model_validate_json(path.read_bytes()))
            return
        data = await self._fetch(f"/policies/{pool}/{step}", MAX_MANIFEST_BYTES)
        manifest = Manifest.from_bytes(data, canonical.sha256(data))
        if (manifest.pool, manifest.step) != (pool, step):
            raise ProtocolError("bad_manifest", "the upstream sent another policy's manifest", status=502)
        try:
            # First: an old policy that somebody still needs may come back.
            self._store.prune(pool, Retention(keep=self._keep - 1))
            self._store.add_manifest(manifest)
        except OSError as error:
            raise _to_full(path, error) from error
        self._remember(manifest)

    async def require_shard(self, sha256: Hash, policy: tuple[int, int] | None = None) -> None:
        """Have a shard on disk, whole and checked; `policy` (pool, step) says whose it is, if it is not known yet."""
        target = self._store.get_shard_path(sha256)
        if target.exists():
            return
        if sha256 not in self._shards and policy is not None:
            await self.require_manifest(*policy)
        shard = self._shards.get(sha256)
        if shard is None:
            raise ProtocolError("not_found", "no manifest seen here names this shard", status=404)
        async with self._locks[sha256]:
            if not target.exists():
                await self._download(shard, target)

    def _remember(self, manifest: Manifest) -> None:
        self._shards.update({shard.sha256: shard for file in manifest.files for shard in file.shards})

    async def _fetch(self, path: str, limit: int) -> bytes:
        try:
            async with self._http.stream("GET", self._upstream + path) as response:
                if response.status_code == 404:
                    raise ProtocolError("not_found", f"the upstream has no {path}", status=404)
                response.raise_for_status()
                data = b""
                async for piece in response.aiter_raw():
                    data += piece
                    if len(data) > limit:
                        raise ProtocolError("oversized", "the upstream sent too much", status=502)
                return data
        except httpx.HTTPError as error:
            raise self._to_unreachable(path, error) from error

    async def _download(self, shard: Shard, target: Path) -> None:
        draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        digest, size = hashlib.sha256(), 0
        try:
            async with self._http.stream("GET", f"{self._upstream}/shards/{shard.sha256}") as response:
                response.raise_for_status()
                with draft.open("wb") as file:
                    async for piece in response.aiter_raw():
                        size += len(piece)
                        if size > shard.size:
                            break
                        digest.update(piece)
                        file.write(piece)
            if size != shard.size or "0x" + digest.hexdigest() != shard.sha256:
                raise TransientError("bad_shard", "the upstream sent a shard that does not have its hash")
            draft.replace(target)
        except httpx.HTTPError as error:
            raise self._to_unreachable(f"/shards/{shard.sha256}", error) from error
        except OSError as error:
            raise _to_full(target, error) from error
        finally:
            draft.unlink(missing_ok=True)

    def _to_unreachable(self, path: str, error: httpx.HTTPError) -> TransientError:
        url = hide_secrets(self._upstream + path)
        return TransientError("upstream_unreachable", f"{url} did not answer: {type(error).__name__}")


def _to_full(path: Path, error: OSError) -> TransientError:
    fix = "Free space there, or keep fewer policies with --keep-policies"
    return TransientError("disk_full", f"{path} could not be written: {error.strerror}. {fix}")


def build_server(store: ShardStore, mirror: Mirror | None = None) -> Starlette:
    """The origin's application; with a mirror, a relay's."""

    async def get_manifest(request: Request) -> Response:
        pool, step = _require_policy(request.path_params)
        if mirror is not None:
            await mirror.require_manifest(pool, step)
        return _serve(store.get_manifest_path(pool, step), "application/json")

    async def get_shard(request: Request) -> Response:
        sha256 = Hash(request.path_params["sha256"])
        if not is_hash(sha256):
            raise ProtocolError("not_found", "a shard is named by its hash", status=404)
        if mirror is not None:
            query = request.query_params
            await mirror.require_shard(sha256, _require_policy(query) if "pool" in query else None)
        return _serve(store.get_shard_path(sha256), "application/octet-stream")

    async def get_health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    routes = [
        Route("/policies/{pool}/{step}", get_manifest),
        Route("/shards/{sha256}", get_shard),
        Route("/health", get_health),
    ]
    return Starlette(routes=routes, exception_handlers={ProtocolError: _on_error, TransientError: _on_error})


def _serve(path: Path, media_type: str) -> Response:
    if not path.is_file():
        raise ProtocolError("not_found", "there is no such policy or shard here", status=404)
    return FileResponse(path, media_type=media_type)


def _require_policy(values: Mapping[str, str]) -> tuple[int, int]:
    """Pool and step, as numbers of at most 63 bits."""
    pool, step = values.get("pool", ""), values.get("step", "")
    if not (_NUMBER.fullmatch(pool) and _NUMBER.fullmatch(step)):
        raise ProtocolError("not_found", "pool and step are numbers of at most 18 digits", status=404)
    return int(pool), int(step)


async def _on_error(_: Request, error: Exception) -> Response:
    if isinstance(error, ProtocolError):
        return JSONResponse({"code": error.code, "message": error.message}, status_code=error.status)
    get_logger().warning("relay cannot serve", message=str(error))
    return JSONResponse({"code": "unavailable", "message": "not to be had now; try again"}, status_code=503)
