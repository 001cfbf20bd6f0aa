"""The origin as a source of pieces: an `OriginStore` whose blocking calls run in threads."""

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
    """Implements `PieceSource` for the folder of a trainer. Raises TransientError("damaged") for what is damaged."""

    def __init__(self, store: OriginStore) -> None:
        self._store, self._previews = store, PreviewFolder(store.root)
        self._valid_heads: dict[int, bytes] = {}
        """Heads that were parsed, by pool. Relays ask for them every second."""

    async def get_piece(self, digest: Hash, *, verify: bool) -> Location:
        """Return where a piece is. The first time, and if `verify` is True, it is hashed before."""
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
        """Return the rows of the export that is being written for a pool."""
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
        """Return the bytes of a pool's head, if they are valid."""
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
        """Return no metrics, because reading the folder takes too long for each request."""
        return ()


def _build_missing(thing: str, *, is_damaged: bool) -> CoveyError:
    if is_damaged:
        return TransientError("damaged", f"{thing} is damaged here. Request it from another relay")
    return ProtocolError("not_found", f"there is no {thing.removeprefix('the ')} here", status=404)
