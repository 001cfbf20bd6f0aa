"""Obtains a pool's policies from untrusted relays, over the route with the fewest bytes.

`PolicyFetch` finds a route to the record, fetches its manifests, makes room, downloads the pieces and builds the
weights. It then compares all digests with the record, and only after that renames the folder into place. It holds the
lock of the store meanwhile. A crash loses at most the pieces in flight. Other packages use `PolicyClient`.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from covey.errors import ProtocolError, TransientError
from covey.protocol.ids import Hash, Step
from covey.protocol.pieces import Piece
from covey.protocol.policy_record import RECORD_FILE, WEIGHTS_FILE, PolicyRecord, TensorRow
from covey.protocol.transport import DELTA, TransportManifest, TransportObject, list_runs
from covey.runtime.log import get_logger
from covey.runtime.urls import hide_secrets
from covey.shardcast.delta.image_codec import compute_max_bytes, list_blocks
from covey.shardcast.partial_file import PartialFile
from covey.shardcast.policy_folder import find_wrong_tensor, map_weights, write_child
from covey.shardcast.policy_prefetch import PolicyPrefetch
from covey.shardcast.policy_source import Claim, PolicySource, Route
from covey.shardcast.policy_store import PolicyStore
from covey.shardcast.source import Source

ROUTES = 4
"""Maximum number of routes that are tried. A route that proves false is not tried again."""
_MARGIN = 1.02
"""Required free space, as a multiple of the bytes that will be written."""
_LOOK_EVERY_SECONDS = 5.0
"""Seconds between two checks whether the policy is obsolete."""


@dataclass(kw_only=True)
class FetchProgress:
    """Progress of one fetch. Another thread, such as that of a progress bar, may read it at any time."""

    size: int = 0
    """Size in bytes of the current route."""
    received: int = 0
    """Number of bytes of the current route that are on this machine, including those of an earlier attempt."""
    ways: list[str] = field(default_factory=list)
    """Kinds of the manifests of the current route, "anchor" or "delta", in order."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One way of a route, with its manifest and records."""

    claim: Claim
    manifest: TransportManifest
    record: PolicyRecord
    base: PolicyRecord | None
    """Record of the base policy. None for an anchor."""


class PolicyClient:
    """Client for the policies of one pool. One thread at a time may fetch."""

    def __init__(self, source: PolicySource, store: PolicyStore) -> None:
        self.source, self.store = source, store
        self._prefetch = PolicyPrefetch(source, store)

    def fetch(
        self,
        step: Step,
        record_hash: Hash,
        *,
        stop: threading.Event | None = None,
        is_obsolete: Callable[[int], bool] = lambda _: False,
        progress: FetchProgress | None = None,
    ) -> Path:
        """Download a policy unless it is on this machine, check its digests, hold its folder, and return the folder.

        `is_obsolete` is called from time to time with the number of missing bytes. It returns whether a newer policy is
        a better use of them. The caller must release the folder in the store when it is no longer needed.

        Raises TransientError "not_at_relays" if no relay knows a route to the policy, "no_relay" if none delivers,
        "obsolete" if `is_obsolete` says so, "disk_full", "store_busy" or "stopped".
        """
        folder, started = self.store.get_folder(step, record_hash), time.monotonic()
        stop, progress = stop or threading.Event(), progress or FetchProgress()
        while not self.store.hold_if_sound(folder):
            with self.store.lock(lambda: not folder.exists(), stop=stop) as is_ours:
                if is_ours:
                    fetch = PolicyFetch(
                        self.source,
                        self.store,
                        self._prefetch,
                        stop=stop,
                        is_obsolete=is_obsolete,
                        progress=progress,
                    )
                    fetch.run(step, record_hash)
                    self._log(step, progress, seconds=time.monotonic() - started)
        return folder

    def prefetch(self, stop: threading.Event) -> bool:
        """Prefetch pieces of the policy that is being exported, as `PolicyPrefetch.fetch` does."""
        return self._prefetch.fetch(stop)

    def _log(self, step: Step, progress: FetchProgress, *, seconds: float) -> None:
        get_logger().info(
            "policy fetched",
            step=step,
            bytes=progress.size,
            ways="+".join(progress.ways),
            seconds=round(seconds, 3),
            delivered={hide_secrets(source.url): source.delivered for source in self.source.downloader.sources},
        )


class PolicyFetch:
    """Builds the folder of one policy."""

    def __init__(
        self,
        source: PolicySource,
        store: PolicyStore,
        prefetch: PolicyPrefetch,
        *,
        stop: threading.Event,
        is_obsolete: Callable[[int], bool],
        progress: FetchProgress,
    ) -> None:
        self._source, self._store, self._prefetch = source, store, prefetch
        self._stop, self._is_obsolete, self._progress = stop, is_obsolete, progress
        self._looked_at, self._trained_at = time.monotonic(), 0.0
        self._suspects: Sequence[Claim] = ()
        """Claims of which at least one is false if the current operation fails."""
        self._avoided: set[Claim] = set()
        """Claims whose content no relay has delivered."""
        self._doubted: set[Source] = set()
        """Relays that have named a failed route. Otherwise they could name the shortest route each time."""

    def run(self, step: Step, record_hash: Hash) -> None:
        """Add a policy to the store. Raises the errors of `PolicyClient.fetch`."""
        record = self._source.fetch_record(record_hash, stop=self._stop)
        if record.step != step:
            raise ProtocolError("bad_record", f"the record {record_hash} belongs to step {record.step}, not {step}")
        failure: TransientError | None = None
        for _ in range(ROUTES):
            try:
                route = self._find_route(record_hash)
            except TransientError as error:
                if failure is None or error.code == "stopped":
                    raise
                raise failure from error
            self._trained_at = route.trained_at
            try:
                if self._follow(self._load(route)):
                    return
            except OSError as error:
                message = f"{self._store.root} could not be written: {error.strerror}"
                raise TransientError("disk_full", f"{message}. Free space there. The download then resumes") from error
            except ProtocolError as error:
                message = f"no route leads to the policy of step {step} with the record {record_hash}: {error.message}"
                failure = TransientError("no_relay", message)
                self._doubted.add(route.source)
                self._source.refuse(self._suspects, route.source, error.message)
            except TransientError as error:
                if error.code not in ("no_relay", "not_at_relays"):
                    raise
                failure = error
                self._avoided.update(self._suspects)
                self._doubted.add(route.source)
                self._source.downloader.distrust(route.source)
        raise failure or TransientError(
            "no_relay", f"all bases on this machine for the policy of step {step} are damaged"
        )

    def _find_route(self, record_hash: Hash) -> Route:
        held = self._store.list_folders().keys()
        return self._source.find_route(record_hash, held, avoided=self._avoided, doubted=self._doubted, stop=self._stop)

    def _load(self, route: Route) -> list[Leg]:
        """Fetch and check the manifests and records of a route. Raises ProtocolError if one of them contradicts its
        claim.
        """
        legs: list[Leg] = []
        for claim in route.claims:
            self._suspects = [claim]
            manifest = self._source.fetch_manifest(claim, stop=self._stop)
            record = self._source.fetch_record(claim.record, stop=self._stop)
            base = None if manifest.is_anchor else self._source.fetch_record(manifest.base, stop=self._stop)
            manifest.require_reaches(record, base)
            delta = manifest.find(DELTA)
            if delta is not None and delta.size > compute_max_bytes(list_blocks(record)):
                raise ProtocolError("bad_manifest", f"the delta has {delta.size} bytes, more than its policy can need")
            legs.append(Leg(claim, manifest, record, base))
        return legs

    def _follow(self, legs: Sequence[Leg]) -> bool:
        """Build the policy. Returns False if the base turned out to be damaged, so that another route is needed."""
        self._progress.ways = ["anchor" if leg.base is None else "delta" for leg in legs]
        self._progress.size = sum(leg.manifest.size for leg in legs)
        self._progress.received = 0
        if legs[0].base is None:
            self._suspects = [legs[0].claim]
            self._fetch_anchor(legs[0])
            legs = legs[1:]
        self._suspects = [leg.claim for leg in legs]
        return not legs or self._fetch_deltas(legs)

    def _fetch_anchor(self, leg: Leg) -> None:
        """Add the policy of an anchor to the store."""
        record, pieces = leg.record, leg.manifest.objects[0].pieces
        path, start = self._store.get_draft(record.compute_hash()) / WEIGHTS_FILE, len(record.header)
        known: Collection[int] = ()

        def take_prefetched() -> None:
            nonlocal known
            known = self._prefetch.take(path, pieces, start=start)

        draft = self._open_draft(record, leg.manifest.size, fill=take_prefetched)
        parts = [PartialFile(path, pieces, start=start, known=known)]
        parts += [_open_object(draft, each) for each in leg.manifest.objects[1:]]
        parts[0].write_start(record.header)
        self._download(parts)
        shared = [row for run in list_runs(record.tensors) if len(run.rows) > 1 for row in run.rows]
        self._require_digests(shared, draft, record=record)  # The digests of other tensors follow from their pieces.
        self._finish(draft, record)

    def _fetch_deltas(self, legs: Sequence[Leg]) -> bool:
        """Add the policy that results from a base on this machine. Returns False if the base was damaged."""
        record, base = legs[-1].record, legs[0].base
        assert base is not None
        base_hash = legs[0].manifest.base
        base_folder = self._store.get_folder(base.step, base_hash)
        if not self._store.hold_if_sound(base_folder):
            return False
        try:
            draft = self._open_draft(record, record.size + sum(leg.manifest.size for leg in legs))
            deltas = [draft / f"{leg.manifest.address}.delta" for leg in legs]
            parts = [PartialFile(path, leg.manifest.objects[0].pieces) for path, leg in zip(deltas, legs, strict=True)]
            parts += self._take_files(draft, legs, base_folder)
            self._download(parts)
            image = map_weights(base_folder / WEIGHTS_FILE, base.tensors)
            write_child(image, deltas, draft / WEIGHTS_FILE, record=record, threads=self._store.threads)
            self._require_digests(record.tensors, draft, record=record)
            self._finish(draft, record)
            return True
        finally:
            self._store.release(base_folder)

    def _take_files(self, draft: Path, legs: Sequence[Leg], base_folder: Path) -> list[PartialFile]:
        """Copy the files that are unchanged since the base, and return the other files, which must be downloaded."""
        parts, base = [], legs[0].base
        assert base is not None
        for row in legs[-1].record.files:
            if row in base.files:
                shutil.copyfile(base_folder / row.name, draft / row.name)
                continue
            newest = next(each for leg in reversed(legs) if (each := leg.manifest.find(row.name)) is not None)
            parts.append(_open_object(draft, newest))
        return parts

    def _open_draft(self, record: PolicyRecord, needed: int, *, fill: Callable[[], None] = lambda: None) -> Path:
        """Make room for a policy and return the folder in which it is built. `fill` adds files of this machine to the
        folder.
        """
        draft = self._store.get_draft(record.compute_hash())
        self._store.remove_drafts(besides=draft)
        draft.mkdir(exist_ok=True)
        fill()
        here = sum(path.stat().st_blocks * 512 for path in draft.iterdir())
        self._store.make_room(max(0, int(needed * _MARGIN) - here))
        return draft

    def _download(self, parts: Sequence[PartialFile]) -> None:
        """Download the missing pieces of the files."""
        try:
            places: list[tuple[Piece, tuple[PartialFile, int]]] = []
            for part in parts:
                missing = part.list_missing()
                places += [(part.pieces[index], (part, index)) for index in missing]
                self._progress.received += sum(piece.size for piece in part.pieces)
            self._progress.received -= sum(piece.size for piece, _ in places)

            def keep(piece: Piece, place: tuple[PartialFile, int], data: memoryview) -> None:
                part, index = place
                part.write(index, data)
                self._progress.received += piece.size

            self._source.downloader.fetch_pieces(
                places, keep, thing="the policy's pieces", stop=self._stop, on_look=self._look
            )
        finally:
            for part in parts:
                part.close()

    def _look(self) -> None:
        """Check from time to time whether the policy is obsolete. Raises TransientError("obsolete") if it is."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY_SECONDS:
            return
        self._looked_at = now
        if self._is_obsolete(self._progress.size - self._progress.received):
            raise TransientError(
                "obsolete", "a newer policy is available and needs fewer bytes than the rest of this one"
            )

    def _require_digests(self, rows: Sequence[TensorRow], draft: Path, *, record: PolicyRecord) -> None:
        """Raise ProtocolError("bad_manifest") unless the tensors match the digests in the record."""
        image = map_weights(draft / WEIGHTS_FILE, record.tensors)
        wrong = find_wrong_tensor(rows, image, record=record, threads=self._store.threads)
        if wrong is not None:
            message = f"the tensor {wrong.name} at the end of the route does not match the record"
            raise ProtocolError("bad_manifest", message, status=502)

    def _finish(self, draft: Path, record: PolicyRecord) -> None:
        """Remove all other files from a complete draft, and rename it into place.

        The other files are the journals and the remains of another route. They are removed last, because a crash before
        this point must not lose the download.
        """
        kept = {WEIGHTS_FILE, *(row.name for row in record.files)}
        for path in draft.iterdir():
            if path.name not in kept:
                path.unlink()
        (draft / RECORD_FILE).write_bytes(record.to_bytes())
        if self._trained_at:
            os.utime(draft / RECORD_FILE, (self._trained_at, self._trained_at))
        self._store.add(draft, record)


def _open_object(draft: Path, each: TransportObject) -> PartialFile:
    return PartialFile(draft / each.name, each.pieces)
