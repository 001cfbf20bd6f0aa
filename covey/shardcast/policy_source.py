"""Routes, records and manifests of a pool's policies, as relays send them. Each is checked as far as possible."""

import threading
from collections.abc import Collection, Set
from dataclasses import dataclass

from covey.errors import ProtocolError
from covey.protocol.eip712 import Domain
from covey.protocol.head import MAX_HEAD_BYTES, Head, Way, get_head_path, get_manifest_path, get_record_path
from covey.protocol.ids import Address, Hash, PoolId
from covey.protocol.policy_record import MAX_RECORD_BYTES, PolicyRecord
from covey.protocol.preview import MAX_PREVIEW_BYTES, get_preview_path, parse_preview
from covey.protocol.transport import MAX_MANIFEST_BYTES, TransportManifest
from covey.shardcast.downloader import Downloader
from covey.shardcast.reachability import find_route
from covey.shardcast.source import Source
from covey.shardcast.source_connection import LackingError

_REMEMBERED = 16
_ASKED = 3
"""Number of relays that are asked for a route concurrently."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Statement in a head that the manifest of `way`, applied to its base, leads to the policy of `record`."""

    record: Hash
    way: Way


@dataclass(frozen=True, slots=True)
class Route:
    """Ways to a policy in the order of their use, and the relay that named them."""

    claims: tuple[Claim, ...]
    trained_at: float
    """Unix time at which the trainer completed the policy, according to the relay. 0 if unknown."""
    source: Source

    @property
    def size(self) -> int:
        """Total size of the ways in bytes, according to the relay."""
        return sum(claim.way.size for claim in self.claims)


class PolicySource:
    """Relays of one pool as a source of policy metadata. One thread at a time may use it."""

    def __init__(self, downloader: Downloader, *, pool: PoolId, domain: Domain, trainer: Address) -> None:
        """`domain` contains the address of PolicyRegistry, and `trainer` signs the manifests."""
        self.downloader = downloader
        self._pool, self._domain, self._trainer = pool, domain, trainer
        self._records: dict[Hash, PolicyRecord] = {}
        self._refused: set[Claim] = set()
        """Claims that proved false. Other claims about the same manifests may be true."""

    def find_route(
        self,
        record_hash: Hash,
        held: Set[Hash],
        *,
        avoided: Set[Claim] = frozenset(),
        doubted: Set[Source] = frozenset(),
        stop: threading.Event | None = None,
    ) -> Route:
        """Return the route to a policy with the fewest bytes, among the routes that a few relays know.

        `held` contains the hashes of the records of policies on this machine. Claims in `avoided` are ignored, and so
        are claims that proved false. A route from a relay in `doubted` is returned only if no other relay knows one.
        Raises TransientError "not_at_relays" or "no_relay".
        """
        routes = _fetch_routes(
            self.downloader, self._pool, record_hash, held=held, false=self._refused | avoided, stop=stop
        )
        return min(routes, key=lambda route: (route.source in doubted, route.size))

    def fetch_record(self, record_hash: Hash, *, stop: threading.Event | None = None) -> PolicyRecord:
        """Return a policy record. Raises the errors of `Downloader.fetch`."""
        if record_hash not in self._records:
            record = _fetch_record(self.downloader, record_hash, stop=stop)
            while len(self._records) >= _REMEMBERED:
                del self._records[next(iter(self._records))]
            self._records[record_hash] = record
        return self._records[record_hash]

    def fetch_manifest(self, claim: Claim, *, stop: threading.Event | None = None) -> TransportManifest:
        """Return the manifest of a claim.

        Raises ProtocolError("bad_manifest") if it contradicts the claim, or ProtocolError("bad_signature") if the
        trainer did not sign it. Also raises the errors of `Downloader.fetch`.
        """
        way = claim.way
        manifest, _ = self.downloader.fetch(
            get_manifest_path(way.manifest),
            limit=MAX_MANIFEST_BYTES,
            check=lambda data: TransportManifest.from_bytes(data, way.manifest),
            thing=f"the manifest {way.manifest}",
            stop=stop,
        )
        manifest.require_signer(self._domain, self._trainer)
        if (manifest.record, manifest.base, manifest.size) != (claim.record, way.base, way.size):
            raise ProtocolError(
                "bad_manifest", f"the manifest {way.manifest} does not match the head that names it", status=502
            )
        return manifest

    def fetch_preview(self, *, stop: threading.Event | None = None) -> bytes:
        """Return a valid preview of the pool's export from a relay. Raises the errors of `Downloader.fetch`."""

        def check(data: bytes) -> bytes:
            parse_preview(data)
            return data

        path, thing = get_preview_path(self._pool), f"a preview of pool {self._pool}"
        return self.downloader.fetch(path, limit=MAX_PREVIEW_BYTES, check=check, thing=thing, stop=stop)[0]

    def refuse(self, claims: Collection[Claim], source: Source, why: str) -> None:
        """Record that at least one of these claims, which `source` named, is false. None of them is used again."""
        self.downloader.blame(source, why)
        self._refused.update(claims)


def look_at_relay(url: str, *, pool: PoolId, record_hash: Hash) -> PolicyRecord:
    """Return a policy's record from one relay. The relay must also know a route from an anchor to the policy.

    Raises the errors of `Downloader.fetch`.
    """
    downloader = Downloader([url])
    try:
        _fetch_routes(downloader, pool, record_hash)
        return _fetch_record(downloader, record_hash)
    finally:
        downloader.close()


def _fetch_routes(
    downloader: Downloader,
    pool: PoolId,
    record_hash: Hash,
    *,
    held: Set[Hash] = frozenset(),
    false: Set[Claim] = frozenset(),
    stop: threading.Event | None = None,
) -> list[Route]:
    """Return one route from each of a few relays that know one. A single relay may hide or lack a delta."""

    def check(data: bytes) -> tuple[tuple[Way, ...], float]:
        head = Head.from_bytes(data)
        if head.pool != pool:
            raise ProtocolError("bad_head", f"the head belongs to pool {head.pool}", status=502)
        ways = find_route(_leave_out(head, false), record_hash, held)
        if ways is None:
            raise LackingError("knows no route to the policy")
        return ways, max((each.trained_at for each in head.policies if each.record == record_hash), default=0.0)

    path, thing = get_head_path(pool), f"a route to a policy of pool {pool}"
    answers = downloader.fetch_several(path, count=_ASKED, limit=MAX_HEAD_BYTES, check=check, thing=thing, stop=stop)
    routes = []
    for (ways, trained_at), source in answers:
        targets = [*(way.base for way in ways[1:]), record_hash][: len(ways)]
        routes.append(Route(tuple(map(Claim, targets, ways)), trained_at, source))
    return routes


def _fetch_record(downloader: Downloader, record_hash: Hash, *, stop: threading.Event | None = None) -> PolicyRecord:
    def check(data: bytes) -> PolicyRecord:
        return PolicyRecord.from_bytes(data, record_hash)

    path, thing = get_record_path(record_hash), f"the record {record_hash}"
    return downloader.fetch(path, limit=MAX_RECORD_BYTES, check=check, thing=thing, stop=stop)[0]


def _leave_out(head: Head, claims: Set[Claim]) -> Head:
    if not claims:
        return head
    policies = (
        policy.model_copy(update={"ways": tuple(way for way in policy.ways if Claim(policy.record, way) not in claims)})
        for policy in head.policies
    )
    return head.model_copy(update={"policies": tuple(policies)})
