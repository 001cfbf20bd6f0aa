"""The manifest of a policy: its files, cut into shards, every piece with size and hash.  Its own hash is on chain.

A full policy is an anchor.  Everything here comes from strangers until the hash of the manifest equals the chain's.
`PolicyName` says which policy is asked for: origin, relays and clients share the form of its URLs.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from covey.errors import ProtocolError
from covey.protocol import canonical
from covey.protocol.ids import Hash, is_hash

MAX_MANIFEST_BYTES = 4 << 20
SHARD_BYTES = 50_000_000
"""Size of every shard but a file's last one (INTELLECT-2, SHARDCAST)."""

HashText = Annotated[Hash, Field(pattern=r"^0x[0-9a-f]{64}$")]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_NUMBER = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyName:
    """Names one policy.  The hash belongs to it: after a reorganisation the chain may hold another one for a step.

    Example: PolicyName(pool=1, step=3, manifest_hash=Hash("0x5f...")).
    """

    pool: int
    step: int
    manifest_hash: Hash

    @property
    def path(self) -> str:
        """Path of the manifest at an origin or a relay.  Example: "/policies/1/3/0x5f..."."""
        return f"/policies/{self.pool}/{self.step}/{self.manifest_hash}"

    def get_shard_path(self, sha256: Hash) -> str:
        """Path of a shard, with the policy as its query: a relay without the shard learns where it is named."""
        return f"/shards/{sha256}?pool={self.pool}&step={self.step}&manifest={self.manifest_hash}"

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Read "pool", "step" and "manifest" of a stranger's URL.

        Raises ProtocolError("not_found") unless they are numbers of at most 18 digits and a hash.
        """
        pool, step, manifest = (values.get(key, "") for key in ("pool", "step", "manifest"))
        if not (_NUMBER.fullmatch(pool) and _NUMBER.fullmatch(step) and is_hash(manifest)):
            message = "a policy is named by pool and step, of at most 18 digits, and the hash of its manifest"
            raise ProtocolError("not_found", message, status=404)
        return cls(pool=int(pool), step=int(step), manifest_hash=Hash(manifest))


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Shard(_Part):
    """A piece of a file.  `size` in bytes."""

    size: int = Field(gt=0, le=1 << 31)
    sha256: HashText


class File(_Part):
    """A file of the policy's folder; shards in order make it up.  Example: name="model.safetensors"."""

    name: str
    size: int = Field(ge=0, le=1 << 45)
    sha256: HashText
    shards: tuple[Shard, ...] = Field(max_length=1 << 17)

    @model_validator(mode="after")
    def _require_sound(self) -> Self:
        if not _NAME.fullmatch(self.name) or ".." in self.name:
            raise ValueError(f"{self.name!r} is not a plain file name")
        if sum(shard.size for shard in self.shards) != self.size:
            raise ValueError("the shards do not add up to the file")
        return self


class Manifest(_Part):
    """What a policy consists of."""

    version: Literal[1] = 1
    pool: int = Field(ge=1, lt=1 << 63)
    step: int = Field(ge=0, lt=1 << 63)
    kind: Literal["anchor"] = "anchor"
    files: tuple[File, ...] = Field(min_length=1, max_length=4096)

    @model_validator(mode="after")
    def _require_distinct(self) -> Self:
        if len({file.name for file in self.files}) != len(self.files):
            raise ValueError("a file name stands twice")
        return self

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def shards(self) -> Iterator[Shard]:
        """Shards of all files, in order."""
        return (shard for file in self.files for shard in file.shards)

    def compute_name(self) -> PolicyName:
        """Return pool, step and hash, by which origin and relays know this policy."""
        return PolicyName(pool=self.pool, step=self.step, manifest_hash=self.compute_hash())

    def to_bytes(self) -> bytes:
        return canonical.to_bytes(self.model_dump(mode="json"))

    def compute_hash(self) -> Hash:
        """SHA-256 of the canonical bytes: what the trainer publishes on chain."""
        return canonical.sha256(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, expected_hash: Hash) -> Self:
        """Parse bytes from a stranger; raise ProtocolError unless they have the chain's hash and are sound."""
        if len(data) > MAX_MANIFEST_BYTES:
            raise ProtocolError("bad_manifest", f"a manifest is at most {MAX_MANIFEST_BYTES} bytes")
        if canonical.sha256(data) != expected_hash:
            raise ProtocolError("bad_manifest", "the manifest does not have the hash that the chain holds")
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise ProtocolError("bad_manifest", f"the manifest does not parse: {error}") from error
