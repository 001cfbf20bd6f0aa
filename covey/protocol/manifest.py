"""Manifest of a policy or a data set: its files and the shards of each file, with sizes and hashes.

The hash of a policy's manifest is on chain. The hash of a data set's manifest is its digest, which a pool's
parameters contain. Downloaded bytes are not trusted until a manifest has the expected hash. A manifest of
kind "anchor" lists a whole policy. `PolicyName` and `DatasetName` identify a policy or a data set, and build
the URL paths that origin, relays and clients share.
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
"""Size in bytes of every shard except the last one of a file (INTELLECT-2, SHARDCAST)."""
DATA_SHARD_BYTES = 1 << 20
"""Size in bytes of every shard of a data set, except the last one of a file. It is small because a worker must
fetch a whole shard to read one row.
"""

HashText = Annotated[Hash, Field(pattern=r"^0x[0-9a-f]{64}$")]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_NUMBER = re.compile("[0-9]{1,18}")


class ManifestName(Protocol):
    """Identifies one manifest, and thereby the shards that the manifest lists."""

    @property
    def manifest_hash(self) -> Hash:
        """SHA-256 of the manifest's bytes."""

    @property
    def path(self) -> str:
        """URL path of the manifest at an origin or a relay."""

    def get_shard_path(self, sha256: Hash) -> str:
        """Return the URL path of a shard. Its query string contains this name.

        The query tells a relay that does not have the shard which manifest lists it.
        """

    def read_manifest(self, data: bytes) -> "FileList":
        """Parse untrusted bytes.

        Raises ProtocolError("bad_manifest") unless they are the manifest with this name.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyName:
    """Identifies one policy by pool, step and manifest hash.

    The hash is needed because a chain reorganisation may give a step a different policy. Example:
    PolicyName(pool=1, step=3, manifest_hash=Hash("0x5f...")).
    """

    pool: int
    step: int
    manifest_hash: Hash

    @property
    def path(self) -> str:
        """URL path of the manifest at an origin or a relay. Example: "/policies/1/3/0x5f..."."""
        return f"/policies/{self.pool}/{self.step}/{self.manifest_hash}"

    def get_shard_path(self, sha256: Hash) -> str:
        """Return the URL path of a shard. Its query string identifies the policy.

        The query tells a relay that does not have the shard which manifest lists it.
        """
        return f"/shards/{sha256}?pool={self.pool}&step={self.step}&manifest={self.manifest_hash}"

    def read_manifest(self, data: bytes) -> "Manifest":
        """Parse untrusted bytes.

        Raises ProtocolError("bad_manifest") unless they are the manifest of this policy.
        """
        manifest = Manifest.from_bytes(data, self.manifest_hash)
        if (manifest.pool, manifest.step) != (self.pool, self.step):
            raise ProtocolError("bad_manifest", "the manifest belongs to a different policy than requested", status=502)
        return manifest

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Parse the values "pool", "step" and "manifest" from an untrusted URL.

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
    """Identifies one data set by its digest. Example: DatasetName(digest=Hash("0x5f..."))."""

    digest: Hash

    @property
    def manifest_hash(self) -> Hash:
        """SHA-256 of the manifest's bytes. It is the same as the digest."""
        return self.digest

    @property
    def path(self) -> str:
        """URL path of the manifest at an origin or a relay. Example: "/datasets/0x5f..."."""
        return f"/datasets/{self.digest}"

    def get_shard_path(self, sha256: Hash) -> str:
        """Return the URL path of a shard. Its query string contains the digest of the data set."""
        return f"/shards/{sha256}?dataset={self.digest}"

    def read_manifest(self, data: bytes) -> "DatasetManifest":
        """Parse untrusted bytes.

        Raises ProtocolError("bad_manifest") unless they are the manifest of this data set.
        """
        return DatasetManifest.from_bytes(data, self.digest)

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Parse the value "dataset" from an untrusted URL. Raises ProtocolError("not_found") if it is not a hash."""
        digest = values.get("dataset", "")
        if not is_hash(digest):
            raise ProtocolError("not_found", "the URL does not identify a data set by its digest", status=404)
        return cls(digest=Hash(digest))


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Shard(_Part):
    """A piece of a file, with its size and hash."""

    size: int = Field(gt=0, le=1 << 31)
    """Size of the shard in bytes."""
    sha256: HashText


class File(_Part):
    """A file of a policy or a data set. Example: name="model.safetensors"."""

    name: str
    size: int = Field(ge=0, le=1 << 45)
    """Size of the file in bytes."""
    sha256: HashText
    shards: tuple[Shard, ...] = Field(max_length=1 << 17)
    """Shards that make up the file, in order."""

    @model_validator(mode="after")
    def _require_sound(self) -> Self:
        if not _NAME.fullmatch(self.name) or ".." in self.name:
            raise ValueError(f"the file name {self.name!r} is not allowed in a manifest")
        if sum(shard.size for shard in self.shards) != self.size:
            raise ValueError("the sizes of the shards do not add up to the size of the file")
        return self


class FileList(_Part):
    """List of the files in a folder. It is the base class of both kinds of manifest."""

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
        """Return the list as canonical JSON, from which the hash is computed."""
        return canonical.to_bytes(self.model_dump(mode="json"))

    def compute_hash(self) -> Hash:
        """Return the SHA-256 of the canonical JSON."""
        return canonical.sha256(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, expected_hash: Hash) -> Self:
        """Parse untrusted bytes.

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
    """Manifest of a policy. The trainer publishes its hash on chain."""

    kind: Literal["anchor"] = "anchor"
    pool: int = Field(ge=1, lt=1 << 63)
    step: int = Field(ge=0, lt=1 << 63)

    def compute_name(self) -> PolicyName:
        """Return the name that identifies this policy at origin and relays: its pool, step and hash."""
        return PolicyName(pool=self.pool, step=self.step, manifest_hash=self.compute_hash())


class DatasetManifest(FileList):
    """Manifest of a data set. Its hash is the digest that a pool's parameters contain."""

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
        """Return the name that identifies this data set at origin and relays: its digest."""
        return DatasetName(digest=self.compute_hash())

    def find_file(self, name: str) -> File | None:
        """Return the file with the given name, or None if the data set does not have it."""
        return next((file for file in self.files if file.name == name), None)
