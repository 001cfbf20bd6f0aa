"""The origin as a `PieceSource`: an `OriginStore` whose blocking calls run in threads."""

import asyncio
from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric

from covey.errors import CoveyError, ProtocolError, TransientError
from covey.protocol.head import Head
from covey.protocol.ids import Hash
from covey.shardcast.export_preview import PreviewFolder
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.piece_files import Location


class OriginSource:
    """Implements `PieceSource` for a trainer's folder. Raises TransientError("damaged") if the requested item is
    damaged.
    """

    def __init__(self, store: OriginStore) -> None:
        self._store, self._previews = store, PreviewFolder(store.root)
        self._valid_heads: dict[int, bytes] = {}
        """Last valid head of each pool. It saves parsing, because relays request heads every second."""

    async def get_piece(self, digest: Hash, *, verify: bool) -> Location:
        """Return the location of a piece. Hashes the piece at its first use, and again if `verify` is True."""
        if not verify and (location := self._store.find_checked_piece(digest)) is not None:
            return location
        found = await asyncio.to_thread(self._find_piece, digest, verify=verify)
        if found is None:
            raise _build_missing(f"the piece {digest}", is_damaged=self._store.is_listed(digest))
        return found

    def _find_piece(self, digest: Hash, *, verify: bool) -> Location | None:
        found = self._store.find_piece(digest, verify=verify)
        if found is None and not self._store.is_listed(digest):
            return self._previews.find_piece(digest, verify=verify)
        return found

    async def get_preview(self, pool: int) -> bytes:
        """Return the rows of the preview of a pool's export."""
        data = await asyncio.to_thread(self._previews.find, pool)
        if data is None:
            raise _build_missing(f"the preview of pool {pool}", is_damaged=False)
        return data

    async def get_manifest(self, address: Hash, *, verify: bool) -> bytes:
        """Return the bytes of a manifest. Its hash is checked like that of a piece."""
        data = await asyncio.to_thread(self._store.find_manifest, address, verify=verify)
        if data is None:
            raise _build_missing(f"the manifest {address}", is_damaged=self._store.has_document(address))
        return data

    async def get_record(self, record: Hash, *, verify: bool) -> bytes:
        """Return the bytes of a record. Its hash is checked like that of a piece."""
        data = await asyncio.to_thread(self._store.find_record, record, verify=verify)
        if data is None:
            raise _build_missing(f"the record {record}", is_damaged=self._store.has_document(record))
        return data

    async def get_head(self, pool: int) -> bytes:
        """Return the bytes of a pool's head. Raises TransientError("damaged") if the head is invalid."""
        data = await asyncio.to_thread(self._store.find_head, pool)
        if data is None:
            raise _build_missing(f"the head of pool {pool}", is_damaged=False)
        if data == self._valid_heads.get(pool):
            return data
        try:
            Head.from_bytes(data)
            self._valid_heads[pool] = data
        except ProtocolError as error:
            raise _build_missing(f"the head of pool {pool}", is_damaged=True) from error
        return data

    def describe(self) -> Mapping[str, object]:
        """Return the values of /status."""
        return {"role": "origin", **self._store.describe()}

    def read_metrics(self) -> Iterable[Metric]:
        """Return no metrics, because reading the folder for each request would take too long."""
        return ()


def _build_missing(thing: str, *, is_damaged: bool) -> CoveyError:
    if is_damaged:
        return TransientError("damaged", f"{thing} is damaged at this origin. Request it from another relay")
    return ProtocolError("not_found", f"this origin has no {thing.removeprefix('the ')}", status=404)
