"""The manifest of a data set: its files, and the hashes of their pieces.

The BLAKE3 hash of the manifest's bytes is the digest of the data set, which a pool's parameters contain. An origin
serves the manifest at `/manifests/<digest>` and each piece at `/pieces/<hash>`. The encoding is canonical JSON, and
other bytes are refused, so a data set has exactly one digest.
"""

import re
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import FailFast, Field, model_validator

from covey.errors import ProtocolError
from covey.protocol import canonical, peer_json
from covey.protocol.ids import Hash
from covey.protocol.peer_json import HashText, PeerModel
from covey.protocol.pieces import Piece, compute_blake3, cut

DATA_PIECE_BYTES = 1 << 20
"""Size in bytes of every piece of a file, except that the last may be smaller. It is smaller than PIECE_BYTES, because
a worker fetches a whole piece to read one row.
"""
MAX_DATASET_MANIFEST_BYTES = 4 << 20
"""Maximum size of an encoded manifest. It suffices for about 60 GB."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class DatasetFile(PeerModel):
    """A file of a data set. Example: name="rows.jsonl"."""

    name: str = Field(max_length=128)
    size: int = Field(ge=0, lt=1 << 45)
    """Size in bytes."""
    hashes: Annotated[tuple[HashText, ...], FailFast()] = Field(max_length=1 << 16)
    """BLAKE3 hashes of the pieces, in order. Their sizes follow from the size of the file."""

    @model_validator(mode="after")
    def _require_sound(self) -> Self:
        if not _NAME.fullmatch(self.name) or ".." in self.name:
            raise ValueError(f"the file name {self.name!r} is not allowed in a data set")
        if len(self.hashes) != -(-self.size // DATA_PIECE_BYTES):
            raise ValueError(f"the number of hashes does not match the size of the file {self.name}")
        return self

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Pieces that make up the file, in order."""
        return tuple(map(Piece, cut(self.size, DATA_PIECE_BYTES), self.hashes))


class DatasetManifest(PeerModel):
    """The files of a data set. Its digest is an option of a pool's environment."""

    files: Annotated[tuple[DatasetFile, ...], FailFast()] = Field(min_length=1, max_length=4096)
    kind: Literal["dataset"] = "dataset"
    version: Literal[2] = 2

    @model_validator(mode="after")
    def _require_distinct(self) -> Self:
        if len({file.name for file in self.files}) != len(self.files):
            raise ValueError("the manifest lists a file name twice")
        return self

    @property
    def size(self) -> int:
        """Total size of all files in bytes."""
        return sum(file.size for file in self.files)

    @cached_property
    def digest(self) -> Hash:
        """BLAKE3 hash of the manifest's bytes. It is the name of the data set."""
        return compute_blake3(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the manifest as canonical JSON."""
        return canonical.to_bytes(self.model_dump(mode="json"))

    def find_file(self, name: str) -> DatasetFile | None:
        """Return the file with the given name, or None if the data set does not have it."""
        return next((file for file in self.files if file.name == name), None)

    @classmethod
    def from_bytes(cls, data: bytes, digest: Hash) -> Self:
        """Parse untrusted bytes.

        Raises ProtocolError("bad_manifest") unless they are the manifest of the data set with this digest.
        """
        if compute_blake3(data) != digest:
            raise _refuse(f"its bytes do not have the hash {digest}")
        name, limit = "manifest of the data set", MAX_DATASET_MANIFEST_BYTES
        manifest = peer_json.parse(cls, data, name=name, code="bad_manifest", max_bytes=limit)
        if manifest.to_bytes() != data:
            raise _refuse("its bytes are not canonical JSON")
        return manifest


def _refuse(reason: str) -> ProtocolError:
    return ProtocolError("bad_manifest", f"the manifest of the data set is invalid: {reason}", status=502)
