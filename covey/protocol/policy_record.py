"""The record of a policy: what it consists of, whatever way it travels. Its hash is on chain.

The record lists every tensor and every other file with its digest. Its hash is a Merkle root, so a single tensor can be
checked without the others. It depends neither on a codec nor on a transport manifest (`covey.protocol.transport`),
because it seeds the prompts and samples of the tasks: a trainer must not be able to choose among several hashes.

All parties store the tensors in one safetensors file with the same bytes: `build_header`, then the tensors in the
order of the record.
"""

import math
import re
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import FailFast, Field, model_validator

from covey.errors import ProtocolError
from covey.protocol import canonical, peer_json
from covey.protocol.ids import ZERO_HASH, Hash, hash_to_bytes
from covey.protocol.merkle import MerkleTree, compute_leaf, hash_leaf
from covey.protocol.peer_json import HashText, PeerModel

MAX_RECORD_BYTES = 32 << 20
"""Maximum size of an encoded record. A model of 100,000 tensors needs about half of it."""
MAX_POLICY_BYTES = 1 << 41
"""Maximum total size of the tensors in bytes. It also limits the numbers of pieces and blocks."""
WEIGHTS_FILE = "model.safetensors"
"""Name of the file with the tensors in a policy's folder."""
RECORD_FILE = "record.json"
"""Name of the file with the record in the folder of a downloaded policy. The record does not list it."""
PIECES_FILE = "model.pieces"
"""Name of the file with the BLAKE3 hashes, 32 bytes each, of the pieces of the weights in a trainer's export."""
DTYPE_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "F8_E4M3": 1, "U8": 1, "I8": 1}
"""Size in bytes of a value of each supported dtype. The names are those of safetensors."""
_TEXT = re.compile(r"[\x21-\x7e]{1,512}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_ENDINGS = (".json", ".jinja", ".txt", ".model")
_PAGE = 4096
_WORD = 32
"""Size in bytes of a word of the ABI encoding."""
_POLICY, _TENSOR, _FILE = "covey/policy", "covey/tensor", "covey/file"
_POLICY_LEAF = ("string", "uint256", "uint64", "bytes32", "uint64", "uint64")
_FILE_LEAF = ("string", "uint64", "string", "uint64", "bytes32")


class TensorRow(PeerModel):
    """A tensor. Example: name="lm_head.weight", dtype="BF16", shape=(151936, 2560)."""

    name: str = Field(max_length=512)
    dtype: str = Field(max_length=16)
    shape: tuple[Annotated[int, Field(ge=1, lt=1 << 40)], ...] = Field(max_length=8)
    digest: HashText
    """Digest of the tensor's bytes in little endian and row-major order (`covey.protocol.pieces`)."""

    @model_validator(mode="after")
    def _require_sound(self) -> Self:
        if not _TEXT.fullmatch(self.name) or self.name == "__metadata__":
            raise ValueError(f"the tensor name {self.name!r} is not allowed")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"the tensor {self.name} has the unsupported dtype {self.dtype!r}")
        return self

    @property
    def size(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def layout_key(self) -> tuple[int, str, str]:
        """Key by which the tensors of a record are sorted: wide dtypes first, which keeps every tensor aligned."""
        return -DTYPE_BYTES[self.dtype], self.dtype, self.name


class FileRow(PeerModel):
    """A file other than the weights. Example: name="config.json"."""

    name: str = Field(max_length=128)
    size: int = Field(ge=0, le=1 << 30)
    """Size in bytes."""
    digest: HashText

    @model_validator(mode="after")
    def _require_sound(self) -> Self:
        if not is_allowed_file(self.name):
            raise ValueError(f"the file name {self.name!r} is not allowed in a policy")
        return self


class PolicyRecord(PeerModel):
    """What a policy consists of. The trainer publishes its hash."""

    version: Literal[2] = 2
    pool: int = Field(ge=1, lt=1 << 63)
    step: int = Field(ge=0, lt=1 << 63)
    parent: HashText = ZERO_HASH
    """Hash of the record of the previous step. ZERO_HASH if the trainer started with this policy."""
    tensors: Annotated[tuple[TensorRow, ...], FailFast()] = Field(min_length=1, max_length=1 << 17)
    """Tensors in the order in which they are stored: by `layout_key`."""
    files: Annotated[tuple[FileRow, ...], FailFast()] = Field(max_length=64)
    """Files other than the weights, sorted by name."""

    @model_validator(mode="after")
    def _require_layout(self) -> Self:
        keys = [row.layout_key for row in self.tensors]
        names = [row.name for row in self.files]
        if keys != sorted(keys) or names != sorted(set(names)) or len({key[2] for key in keys}) != len(keys):
            raise ValueError("the tensors or files are not sorted, or a name occurs twice")
        if self.size > MAX_POLICY_BYTES:
            raise ValueError(f"the tensors have {self.size} bytes, but at most {MAX_POLICY_BYTES} are allowed")
        return self

    @property
    def size(self) -> int:
        """Total size of all tensors in bytes, without the header."""
        return sum(row.size for row in self.tensors)

    @cached_property
    def header(self) -> bytes:
        """Header of the safetensors file, before the first tensor. Its size is a multiple of a memory page."""
        return build_header(self.tensors)

    def has_same_layout(self, other: "PolicyRecord") -> bool:
        """Return whether all tensors of the other record have the same names, dtypes and shapes as these."""
        return [(row.layout_key, row.shape) for row in self.tensors] == [
            (row.layout_key, row.shape) for row in other.tensors
        ]

    def compute_hash(self) -> Hash:
        """Return the Merkle root over one leaf for the policy itself, each tensor and each file."""
        values = (_POLICY, self.pool, self.step, hash_to_bytes(self.parent), len(self.tensors), len(self.files))
        leaves = [compute_leaf(_POLICY_LEAF, values)]
        leaves += [hash_leaf(_encode_tensor(index, row)) for index, row in enumerate(self.tensors)]
        for index, file in enumerate(self.files):
            leaves.append(compute_leaf(_FILE_LEAF, (_FILE, index, file.name, file.size, hash_to_bytes(file.digest))))
        return MerkleTree(leaves).root

    def to_bytes(self) -> bytes:
        """Return the record as canonical JSON."""
        return canonical.to_bytes(self.model_dump(mode="json"))

    @classmethod
    def from_bytes(cls, data: bytes, expected_hash: Hash) -> Self:
        """Parse untrusted bytes.

        Raises ProtocolError("bad_record") unless they are a valid record with the expected hash.
        """
        record = peer_json.parse(cls, data, name="record", code="bad_record", max_bytes=MAX_RECORD_BYTES)
        if record.compute_hash() != expected_hash:
            raise ProtocolError("bad_record", f"the record does not have the hash {expected_hash}", status=502)
        return record


def _encode_tensor(index: int, row: TensorRow) -> bytes:
    """Return the ABI encoding of (string, uint64, string, string, uint64[], bytes32): kind, index and the row.

    A record may have 100,000 rows, and the general encoder would need most of the time that its hash takes.
    """
    name, dtype = _encode_text(row.name), _encode_text(row.dtype)
    shape = b"".join(map(_encode_number, (len(row.shape), *row.shape)))
    start = 6 * _WORD + len(_TENSOR_TEXT)
    offsets = (start, start + len(name), start + len(name) + len(dtype))
    head = (_encode_number(6 * _WORD), _encode_number(index), *map(_encode_number, offsets), hash_to_bytes(row.digest))
    return b"".join((*head, _TENSOR_TEXT, name, dtype, shape))


def _encode_number(number: int) -> bytes:
    return number.to_bytes(_WORD, "big")


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return _encode_number(len(data)) + data + bytes(-len(data) % _WORD)


_TENSOR_TEXT = _encode_text(_TENSOR)


def is_allowed_file(name: str) -> bool:
    """Return whether a policy may contain a file of this name: texts that configure a model or its tokenizer."""
    is_safe = _FILE_NAME.fullmatch(name) is not None and ".." not in name and name.endswith(_ENDINGS)
    return is_safe and name not in (RECORD_FILE, "adapter_config.json")


def build_header(tensors: tuple[TensorRow, ...]) -> bytes:
    """Return the header of a safetensors file with these tensors in this order, padded with spaces to whole pages.

    Source: the format's description in the README of the safetensors library.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for row in tensors:
        entries[row.name] = {"dtype": row.dtype, "shape": row.shape, "data_offsets": [start, start + row.size]}
        start += row.size
    text = canonical.to_bytes(entries)
    padded = text.ljust(-(-(len(text) + 8) // _PAGE) * _PAGE - 8)
    return len(padded).to_bytes(8, "little") + padded
