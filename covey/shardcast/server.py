"""Origin and relay: the same small HTTP application over a ShardStore.

GET /policies/{pool}/{step}/{manifest}, GET /datasets/{dataset}, and GET /shards/{sha256} with ?pool=&step=&manifest= or
?dataset=.  A relay fetches what it lacks and what its disk has damaged.  It checks every hash before it keeps or serves
anything, and serves one shard while the next still arrives.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from covey.errors import ProtocolError, TransientError
from covey.protocol.ids import Hash, is_hash
from covey.protocol.manifest import (
    MAX_MANIFEST_BYTES,
    DatasetManifest,
    DatasetName,
    FileList,
    Manifest,
    ManifestName,
    PolicyName,
    Shard,
)
from covey.runtime.log import get_logger
from covey.runtime.urls import hide_secrets
from covey.shardcast.store import KEPT_DATASETS, KEPT_POLICIES, Retention, ShardStore

Copy = TypeVar("Copy")


class Mirror:
    """Fills a relay's folder from its upstream.  Only shards that a manifest names are ever fetched."""

    def __init__(
        self, store: ShardStore, upstream: str, *, keep: int = KEPT_POLICIES, keep_datasets: int = KEPT_DATASETS
    ) -> None:
        """`keep`: newest policies that stay here; an older one is fetched again for who asks for it.
        `keep_datasets`: data sets that stay here, those that were fetched last."""
        self._store, self._upstream, self._keep = store, upstream.rstrip("/"), keep
        self._keep_datasets = keep_datasets
        self._http = httpx.AsyncClient(timeout=30, headers={"accept-encoding": "identity"}, trust_env=False)
        self._locks: WeakValueDictionary[Hash, asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        await self._http.aclose()

    async def require_manifest(self, name: ManifestName) -> bytes:
        """Return the manifest's bytes, fetched if need be.

        Raises ProtocolError("not_found") if the upstream has no such manifest, ProtocolError("bad_manifest") if it
        sends another one, TransientError if it does not answer.
        """
        if (data := await _find(lambda: self._store.find_manifest(name))) is not None:
            return data
        data = await self._fetch(name.path, MAX_MANIFEST_BYTES)
        try:
            manifest = name.read_manifest(data)
        except ProtocolError as error:
            raise ProtocolError("bad_manifest", f"from the upstream: {error.message}", status=502) from error
        try:
            self._add_manifest(manifest)
        except OSError as error:
            raise _to_full(self._store.get_manifest_path(name), error) from error
        return data

    def _add_manifest(self, manifest: FileList) -> None:
        """Make room first: an old policy or data set that somebody still needs may come back."""
        match manifest:
            case Manifest():
                self._store.prune(manifest.pool, Retention(keep=self._keep - 1))
                self._store.add_manifest(manifest)
            case DatasetManifest():
                self._store.prune_datasets(self._keep_datasets - 1)
                self._store.add_manifest(manifest)

    async def require_shard(self, sha256: Hash, name: ManifestName | None = None) -> Path:
        """Return the file of a shard, whole and checked, fetched if need be; `name` is of a manifest that lists it.

        Raises ProtocolError("not_found") if the manifest does not list it, and what `require_manifest` raises.
        """
        if (path := await _find(lambda: self._store.find_shard(sha256))) is not None:
            return path
        if name is None:
            raise ProtocolError("not_found", "a shard that is not here is fetched for its manifest only", status=404)
        async with self._locks.setdefault(sha256, asyncio.Lock()):
            if (path := await _find(lambda: self._store.find_shard(sha256))) is not None:
                return path
            data = await self.require_manifest(name)
            manifest = await asyncio.to_thread(name.read_manifest, data)
            shard = next((shard for shard in manifest.shards if shard.sha256 == sha256), None)
            if shard is None:
                raise ProtocolError("not_found", "the manifest does not name this shard", status=404)
            return await self._download(shard, name)

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

    async def _download(self, shard: Shard, name: ManifestName) -> Path:
        target, path = self._store.get_shard_path(shard.sha256), name.get_shard_path(shard.sha256)
        draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        digest, size = hashlib.sha256(), 0
        try:
            async with self._http.stream("GET", self._upstream + path) as response:
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
            return self._store.adopt_shard(shard.sha256, draft)
        except httpx.HTTPError as error:
            raise self._to_unreachable(path, error) from error
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


async def _find(look: Callable[[], Copy | None]) -> Copy | None:
    """What a relay has a good copy of.  A damaged one counts as none and is fetched again."""
    try:
        return await asyncio.to_thread(look)
    except TransientError as error:
        get_logger().warning("copy is fetched again", message=error.message)
        return None


def build_server(store: ShardStore, mirror: Mirror | None = None) -> Starlette:
    """The origin's application; with a mirror, a relay's."""

    async def get_manifest(request: Request) -> Response:
        name = _parse_name(request.path_params)
        data = await (mirror.require_manifest(name) if mirror else asyncio.to_thread(store.find_manifest, name))
        if data is None:
            raise ProtocolError("not_found", "there is no such policy or data set here", status=404)
        return Response(data, media_type="application/json")

    async def get_shard(request: Request) -> Response:
        sha256, query = Hash(request.path_params["sha256"]), request.query_params
        if not is_hash(sha256):
            raise ProtocolError("not_found", "a shard is named by its hash", status=404)
        name = _parse_name(query) if query else None
        path = await (mirror.require_shard(sha256, name) if mirror else asyncio.to_thread(store.find_shard, sha256))
        if path is None:
            raise ProtocolError("not_found", "there is no such shard here", status=404)
        return FileResponse(path, media_type="application/octet-stream")

    async def get_health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    routes = [
        Route("/policies/{pool}/{step}/{manifest}", get_manifest),
        Route("/datasets/{dataset}", get_manifest),
        Route("/shards/{sha256}", get_shard),
        Route("/health", get_health),
    ]
    handlers = dict.fromkeys((ProtocolError, TransientError, OSError), _on_error)
    return Starlette(routes=routes, exception_handlers=handlers)


def _parse_name(values: Mapping[str, str]) -> ManifestName:
    """What a URL names; raise ProtocolError("not_found")."""
    return DatasetName.parse(values) if "dataset" in values else PolicyName.parse(values)


async def _on_error(_: Request, error: Exception) -> Response:
    if isinstance(error, ProtocolError):
        return JSONResponse({"code": error.code, "message": error.message}, status_code=error.status)
    get_logger().warning("cannot serve", message=str(error))
    return JSONResponse({"code": "unavailable", "message": "not to be had now; try again"}, status_code=503)
