"""Transport manifests: how to obtain the policy of a record. A pool's trainer signs them, and there may be many.

A manifest without a base is an anchor: its pieces are the policy. A manifest with a base is a delta: its pieces tell a
holder of the base's policy what has changed. A delta over several steps is called a jump. Whatever a manifest
says, a policy is used only if its digests are those of the record.

    format      4 bytes: CVT1
    record      32 bytes
    base        32 bytes: zero for an anchor
    objects     u16: their number; for each its name (u8 length, ASCII) and the number of pieces (u32)
    pieces      of all objects in order: hash (32 bytes) and size (u32)
    signature   65 bytes: EIP-712 signature of `Transport` by the trainer

All numbers are little endian. The hash of all these bytes is the manifest's address.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from covey.errors import ProtocolError
from covey.protocol import eip712
from covey.protocol.eip712 import Domain, Signer
from covey.protocol.ids import ZERO_HASH, Address, Hash, hash_from_bytes, hash_to_bytes
from covey.protocol.pieces import PIECE_BYTES, Piece, combine, compute_blake3, cut
from covey.protocol.policy_record import FileRow, PolicyRecord, TensorRow, is_allowed_file

MAX_MANIFEST_BYTES = 16 << 20
"""Maximum size of an encoded manifest. It suffices for 1.9 TB in pieces of PIECE_BYTES."""
WEIGHTS = "weights"
"""Name of the object with the tensors of an anchor, without the header of their file."""
DELTA = "delta"
"""Name of the object with the changes of a delta (`covey.shardcast.delta.image_codec`)."""
_FORMAT = b"CVT1"
_START, _OBJECT, _PIECE = struct.Struct("<4s32s32sH"), struct.Struct("<B"), struct.Struct("<32sI")
_COUNT = struct.Struct("<I")
_SIGNATURE_BYTES = 65
_MAX_OBJECTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """The message that a trainer signs for a transport manifest."""

    TYPES: ClassVar[dict[str, str]] = {"record": "bytes32", "base": "bytes32", "content": "bytes32"}
    record: Hash
    base: Hash
    content: Hash
    """BLAKE3 hash of the manifest's bytes before the signature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportObject:
    """Bytes that travel in pieces. Example: name="config.json"."""

    name: str
    """WEIGHTS, DELTA or the name of a file in the record."""
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(piece.size for piece in self.pieces)


@dataclass(frozen=True, kw_only=True)
class TransportManifest:
    """An anchor or a delta. `sign` creates one, and `from_bytes` reads one from a peer."""

    record: Hash
    """Hash of the record of the policy that it leads to."""
    base: Hash = ZERO_HASH
    """Hash of the record of the policy that is needed. ZERO_HASH for an anchor."""
    objects: tuple[TransportObject, ...]
    """An anchor has the weights and every file of the record. A delta has the delta and the files that differ."""
    signature: str = "0x" + "00" * _SIGNATURE_BYTES

    @property
    def is_anchor(self) -> bool:
        """Whether it needs no base."""
        return self.base == ZERO_HASH

    @property
    def pieces(self) -> Iterator[Piece]:
        """Pieces of all objects, in order."""
        return (piece for each in self.objects for piece in each.pieces)

    @property
    def size(self) -> int:
        """Total size of all pieces in bytes."""
        return sum(piece.size for piece in self.pieces)

    @cached_property
    def address(self) -> Hash:
        """BLAKE3 hash of the manifest's bytes. It is its name at origin and relays."""
        return compute_blake3(self.to_bytes())

    def find(self, name: str) -> TransportObject | None:
        """Return the object with the given name, or None."""
        return next((each for each in self.objects if each.name == name), None)

    def to_bytes(self) -> bytes:
        """Encode the manifest as the module describes."""
        return self._encode_content() + bytes.fromhex(self.signature[2:])

    def sign(self, domain: Domain, signer: Signer) -> "TransportManifest":
        """Return this manifest with the trainer's signature. `domain` contains the address of PolicyRegistry."""
        signature = eip712.sign(self._build_message(), domain, signer)
        return TransportManifest(record=self.record, base=self.base, objects=self.objects, signature=signature)

    def require_signer(self, domain: Domain, trainer: Address) -> None:
        """Raise ProtocolError("bad_signature") unless the trainer signed the manifest."""
        eip712.require_signer(self._build_message(), domain, self.signature, trainer)

    def require_reaches(self, record: PolicyRecord, base: PolicyRecord | None) -> None:
        """Check what can be known before anything is downloaded. `base` is None for an anchor.

        Raises ProtocolError("bad_manifest") if the objects are not those that lead from the base to the record, or if
        the hashes of an anchor's pieces contradict the record.
        """
        known = {row.name: row for row in record.files}
        if base is None:
            first, changed = WEIGHTS, known
        else:
            first, same = DELTA, {row.name: row for row in base.files}
            changed = {name: row for name, row in known.items() if same.get(name) != row}
            if not record.has_same_layout(base):
                raise _refuse("its base has other tensors than its record")
        if [each.name for each in self.objects] != [first, *changed]:
            raise _refuse(f"its objects are not {first} and {len(changed)} files")
        if base is None:
            _require_weights(self.objects[0].pieces, record)
        for each in self.objects[1:]:
            _require_file(each.pieces, changed[each.name])

    @classmethod
    def from_bytes(cls, data: bytes, address: Hash) -> Self:
        """Parse untrusted bytes.

        Raises ProtocolError("bad_manifest") unless they have the hash `address` and are a valid manifest. Does not
        check the signature.
        """
        if len(data) > MAX_MANIFEST_BYTES:
            raise _refuse(f"it exceeds {MAX_MANIFEST_BYTES} bytes")
        if compute_blake3(data) != address:
            raise _refuse(f"its bytes do not have the hash {address}")
        try:
            return cls._decode(data)
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise _refuse(str(error)) from error

    @classmethod
    def _decode(cls, data: bytes) -> Self:
        mark, record, base, count = _START.unpack_from(data)
        offset, names, counts = _START.size, [], []
        if mark != _FORMAT or not 1 <= count <= _MAX_OBJECTS:
            raise ValueError("its format or its number of objects is invalid")
        for _ in range(count):
            (length,) = _OBJECT.unpack_from(data, offset)
            offset += _OBJECT.size
            names.append(data[offset : offset + length].decode("ascii"))
            offset += length
            counts.append(_COUNT.unpack_from(data, offset)[0])
            offset += _COUNT.size
        if len(data) != offset + _PIECE.size * sum(counts) + _SIGNATURE_BYTES:
            raise ValueError("its size does not match its numbers of pieces")
        if len(set(names)) != count or not all(name in (WEIGHTS, DELTA) or is_allowed_file(name) for name in names):
            raise ValueError("a name of an object is invalid or occurs twice")
        objects = []
        for name, number in zip(names, counts, strict=True):
            end = offset + number * _PIECE.size
            rows = _PIECE.iter_unpack(data[offset:end])
            objects.append(
                TransportObject(name=name, pieces=tuple(Piece(size, hash_from_bytes(d)) for d, size in rows))
            )
            offset = end
        if not all(1 <= piece.size <= PIECE_BYTES for each in objects for piece in each.pieces):
            raise ValueError("a piece is empty or too large")
        return cls(
            record=hash_from_bytes(record),
            base=hash_from_bytes(base),
            objects=tuple(objects),
            signature="0x" + data[offset:].hex(),
        )

    def _build_message(self) -> Transport:
        return Transport(record=self.record, base=self.base, content=compute_blake3(self._encode_content()))

    def _encode_content(self) -> bytes:
        head = _START.pack(_FORMAT, hash_to_bytes(self.record), hash_to_bytes(self.base), len(self.objects))
        names = (
            _OBJECT.pack(len(each.name)) + each.name.encode("ascii") + _COUNT.pack(len(each.pieces))
            for each in self.objects
        )
        pieces = (_PIECE.pack(hash_to_bytes(piece.digest), piece.size) for piece in self.pieces)
        return b"".join((head, *names, *pieces))


@dataclass(frozen=True, slots=True)
class Run:
    """Tensors of an anchor that share pieces: either several small tensors in one piece, or one tensor in any number.

    Example: Run((norm, bias), (8192,)) or Run((embedding,), (4194304, 4194304, 1024)).
    """

    rows: tuple[TensorRow, ...]
    sizes: tuple[int, ...]
    """Sizes of the pieces in bytes."""


def list_runs(rows: Sequence[TensorRow]) -> Iterator[Run]:
    """Yield the runs that make up an anchor's weights, in order. `rows` are the tensors of its record.

    Consecutive tensors share a piece as long as it does not exceed PIECE_BYTES.
    """
    small: list[TensorRow] = []
    size = 0
    for row in rows:
        if small and size + row.size > PIECE_BYTES:
            yield Run(tuple(small), (size,))
            small, size = [], 0
        if row.size > PIECE_BYTES:
            yield Run((row,), tuple(cut(row.size)))
        else:
            small.append(row)
            size += row.size
    if small:
        yield Run(tuple(small), (size,))


def _require_weights(pieces: Sequence[Piece], record: PolicyRecord) -> None:
    """Tensors that share a piece are checked when it has arrived, and all others here."""
    first = 0
    for run in list_runs(record.tensors):
        part = pieces[first : first + len(run.sizes)]
        first += len(run.sizes)
        if tuple(piece.size for piece in part) != run.sizes:
            raise _refuse(f"the pieces of {run.rows[0].name} do not have the sizes that its record requires")
        if len(run.rows) == 1 and combine([piece.digest for piece in part]) != run.rows[0].digest:
            raise _refuse(f"the pieces of {run.rows[0].name} do not have the digest in its record")
    if first != len(pieces):
        raise _refuse("its weights have more pieces than its record requires")


def _require_file(pieces: Sequence[Piece], row: FileRow) -> None:
    """A file's digest follows from the hashes of its pieces."""
    if [piece.size for piece in pieces] != list(cut(row.size)) or combine([p.digest for p in pieces]) != row.digest:
        raise _refuse(f"the pieces of {row.name} do not have the digest in its record")


def _refuse(reason: str) -> ProtocolError:
    return ProtocolError("bad_manifest", f"the transport manifest is invalid: {reason}", status=502)
