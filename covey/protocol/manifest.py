"""The manifest of a policy or a data set: its files, cut into shards, with the size and hash of every piece.

The hash of a policy's manifest is on chain. The hash of a data set's manifest is its digest, which a pool's parameters
contain. Bytes come from strangers and are not trusted until a manifest has the hash that names it. A manifest of kind
"anchor" is that of a full policy. `PolicyName` and `DatasetName` identify what is requested, in the form of URL that
origin, relays and clients share.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from covey.errors import ProtocolError
from covey.protocol import canonical
from covey.protocol.ids import Hash, is_hash

MAX_MANIFEST_BYTES = 4 << 20
SHARD_BYTES = 50_000_000
"""Size in bytes of every shard except a file's last one (INTELLECT-2, SHARDCAST)."""
DATA_SHARD_BYTES = 1 << 20
"""Size in bytes of every shard of a data set except a file's last one. It is small because a worker fetches whole
shards for single rows."""

HashText = Annotated[Hash, Field(pattern=r"^0x[0-9a-f]{64}$")]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_NUMBER = re.compile("[0-9]{1,18}")


class ManifestName(Protocol):
    """Name of one manifest, and thereby of the shards that the manifest lists."""

    @property
    def manifest_hash(self) -> Hash:
        """SHA-256 of the manifest's bytes."""

    @property
    def path(self) -> str:
        """Path of the manifest at an origin or a relay."""

    def get_shard_path(self, sha256: Hash) -> str:
        """Return the path of a shard, with this name as its query.

        A relay without the shard learns from the query which manifest lists it.
        """

    def read_manifest(self, data: bytes) -> "FileList":
        """Parse bytes from a stranger.

        Raises ProtocolError("bad_manifest") unless they are the manifest of this name.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyName:
    """Name of one policy. It includes the hash, because a step may have another policy after a reorganisation.

    Example: PolicyName(pool=1, step=3, manifest_hash=Hash("0x5f...")).
    """

    pool: int
    step: int
    manifest_hash: Hash

    @property
    def path(self) -> str:
        """Path of the manifest at an origin or a relay. Example: "/policies/1/3/0x5f..."."""
        return f"/policies/{self.pool}/{self.step}/{self.manifest_hash}"

    def get_shard_path(self, sha256: Hash) -> str:
        """Return the path of a shard, with the policy as its query.

        A relay without the shard learns from the query which manifest lists it.
        """
        return f"/shards/{sha256}?pool={self.pool}&step={self.step}&manifest={self.manifest_hash}"

    def read_manifest(self, data: bytes) -> "Manifest":
        """Parse bytes from a stranger.

        Raises ProtocolError("bad_manifest") unless they are the manifest of this policy.
        """
        manifest = Manifest.from_bytes(data, self.manifest_hash)
        if (manifest.pool, manifest.step) != (self.pool, self.step):
            raise ProtocolError("bad_manifest", "the manifest belongs to a different policy than requested", status=502)
        return manifest

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Read "pool", "step" and "manifest" of a stranger's URL.

        Raises ProtocolError("not_found") unless they are two numbers of at most 18 digits and a hash.
        """
        pool, step, manifest = (values.get(key, "") for key in ("pool", "step", "manifest"))
        if not (_NUMBER.fullmatch(pool) and _NUMBER.fullmatch(step) and is_hash(manifest)):
            message = (
                "the URL does not identify a policy by pool and step (numbers of at most 18 digits) and manifest hash"
            )
            raise ProtocolError("not_found", message, status=404)
        return cls(pool=int(pool), step=int(step), manifest_hash=Hash(manifest))


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetName:
    """Name of one data set, which is its digest. Example: DatasetName(digest=Hash("0x5f..."))."""

    digest: Hash

    @property
    def manifest_hash(self) -> Hash:
        """SHA-256 of the manifest's bytes, which is the digest."""
        return self.digest

    @property
    def path(self) -> str:
        """Path of the manifest at an origin or a relay. Example: "/datasets/0x5f..."."""
        return f"/datasets/{self.digest}"

    def get_shard_path(self, sha256: Hash) -> str:
        """Return the path of a shard, with the data set as its query."""
        return f"/shards/{sha256}?dataset={self.digest}"

    def read_manifest(self, data: bytes) -> "DatasetManifest":
        """Parse bytes from a stranger.

        Raises ProtocolError("bad_manifest") unless they are the manifest of this data set.
        """
        return DatasetManifest.from_bytes(data, self.digest)

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Read "dataset" of a stranger's URL. Raises ProtocolError("not_found") unless it is a hash."""
        digest = values.get("dataset", "")
        if not is_hash(digest):
            raise ProtocolError("not_found", "the URL does not identify a data set by its digest", status=404)
        return cls(digest=Hash(digest))


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Shard(_Part):
    """A piece of a file."""

    size: int = Field(gt=0, le=1 << 31)
    """Size of the piece in bytes."""
    sha256: HashText


class File(_Part):
    """A file of a policy or a data set. Example: name="model.safetensors"."""

    name: str
    size: int = Field(ge=0, le=1 << 45)
    """Size of the file in bytes."""
    sha256: HashText
    shards: tuple[Shard, ...] = Field(max_length=1 << 17)
    """Pieces that make up the file, in order."""

    @model_validator(mode="after")
    def _require_sound(self) -> Self:
        if not _NAME.fullmatch(self.name) or ".." in self.name:
            raise ValueError(f"the file name {self.name!r} is not allowed in a manifest")
        if sum(shard.size for shard in self.shards) != self.size:
            raise ValueError("the sizes of the shards do not add up to the size of the file")
        return self


class FileList(_Part):
    """The files of a folder, which are the common part of every kind of manifest."""

    version: Literal[1] = 1
    files: tuple[File, ...] = Field(min_length=1, max_length=4096)

    @model_validator(mode="after")
    def _require_distinct(self) -> Self:
        if len({file.name for file in self.files}) != len(self.files):
            raise ValueError("the manifest lists a file name twice")
        return self

    @property
    def size(self) -> int:
        """Total size of all files, in bytes."""
        return sum(file.size for file in self.files)

    @property
    def shards(self) -> Iterator[Shard]:
        """Shards of all files, in order."""
        return (shard for file in self.files for shard in file.shards)

    def to_bytes(self) -> bytes:
        """Return the canonical bytes, which the hash covers."""
        return canonical.to_bytes(self.model_dump(mode="json"))

    def compute_hash(self) -> Hash:
        """Return the SHA-256 of the canonical bytes."""
        return canonical.sha256(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, expected_hash: Hash) -> Self:
        """Parse bytes from a stranger.

        Raises ProtocolError("bad_manifest") unless they have the expected hash and are a valid manifest.
        """
        if len(data) > MAX_MANIFEST_BYTES:
            raise ProtocolError("bad_manifest", f"the manifest exceeds {MAX_MANIFEST_BYTES} bytes")
        if canonical.sha256(data) != expected_hash:
            raise ProtocolError("bad_manifest", f"the manifest does not have the expected hash {expected_hash}")
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise ProtocolError("bad_manifest", f"the manifest is invalid: {error}") from error


class Manifest(FileList):
    """The files of a policy. The trainer publishes the hash of this manifest on chain."""

    kind: Literal["anchor"] = "anchor"
    pool: int = Field(ge=1, lt=1 << 63)
    step: int = Field(ge=0, lt=1 << 63)

    def compute_name(self) -> PolicyName:
        """Return the name of this policy, by which origin and relays know it: its pool, step and hash."""
        return PolicyName(pool=self.pool, step=self.step, manifest_hash=self.compute_hash())


class DatasetManifest(FileList):
    """The files of a data set. The hash of this manifest is the digest that a pool's parameters contain."""

    kind: Literal["dataset"] = "dataset"

    @model_validator(mode="after")
    def _require_even_shards(self) -> Self:
        for file in self.files:
            if any(shard.size != DATA_SHARD_BYTES for shard in file.shards[:-1]):
                raise ValueError(f"a shard of {file.name} other than the last does not have {DATA_SHARD_BYTES} bytes")
            if file.shards and file.shards[-1].size > DATA_SHARD_BYTES:
                raise ValueError(f"the last shard of {file.name} exceeds {DATA_SHARD_BYTES} bytes")
        return self

    def compute_name(self) -> DatasetName:
        """Return the name by which origin and relays know this data set."""
        return DatasetName(digest=self.compute_hash())

    def find_file(self, name: str) -> File | None:
        """Return the file of a name. None if the data set does not have it."""
        return next((file for file in self.files if file.name == name), None)
