"""Transport manifests: their bytes and signature, the rules of anchors and deltas, and hostile bytes."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.chain.wallet import wallet_from_key
from covey.errors import ProtocolError
from covey.protocol import eip712, transport
from covey.protocol.eip712 import Domain
from covey.protocol.ids import ZERO_HASH, Hash, hash_from_bytes, hash_to_bytes
from covey.protocol.pieces import PIECE_BYTES, Piece, build_pieces, combine, compute_blake3, compute_digest
from covey.protocol.policy_record import FileRow, PolicyRecord, TensorRow
from covey.protocol.transport import (
    DELTA,
    MAX_MANIFEST_BYTES,
    WEIGHTS,
    Run,
    Transport,
    TransportManifest,
    TransportObject,
    list_runs,
)

pytestmark = pytest.mark.unit

DOMAIN = Domain(chain_id=31337, contract="0x5FbDB2315678afecb367f032d93F642f64180aa3")
TRAINER, STRANGER = (wallet_from_key(bytes([byte]) * 32) for byte in (0x11, 0x22))
ONE, TWO = Hash("0x" + "11" * 32), Hash("0x" + "22" * 32)
hashes = st.binary(min_size=32, max_size=32).map(hash_from_bytes)
pieces = st.lists(st.builds(Piece, st.integers(1, PIECE_BYTES), hashes), max_size=4).map(tuple)
names = st.sampled_from([WEIGHTS, DELTA, "config.json", "merges.txt", "tokenizer.model"])
objects = st.lists(
    st.builds(TransportObject, name=names, pieces=pieces), min_size=1, max_size=4, unique_by=lambda o: o.name
)
manifests = st.builds(
    TransportManifest,
    record=hashes,
    base=hashes,
    objects=objects.map(tuple),
    signature=st.binary(min_size=65, max_size=65).map(lambda data: "0x" + data.hex()),
)


def read(data: bytes) -> TransportManifest:
    return TransportManifest.from_bytes(data, compute_blake3(data))


def encode(
    names: list[bytes],
    counts: list[int],
    pieces: bytes = b"",
    *,
    mark: bytes = b"CVT1",
    number: int | None = None,
    end: bytes = bytes(65),
) -> bytes:
    """Return the bytes of a manifest by the description of the format."""
    data = mark + hash_to_bytes(ONE) + hash_to_bytes(TWO) + struct.pack("<H", len(names) if number is None else number)
    for name, count in zip(names, counts, strict=True):
        data += bytes([len(name)]) + name + struct.pack("<I", count)
    return data + pieces + end


def encode_piece(size: int) -> bytes:
    return hash_to_bytes(ONE) + struct.pack("<I", size)


def build_row(name: str, size: int, data: bytes = b"") -> TensorRow:
    return TensorRow(name=name, dtype="U8", shape=(size,), digest=compute_digest(data) if data else ONE)


def build_file(name: str, data: bytes) -> FileRow:
    return FileRow(name=name, size=len(data), digest=compute_digest(data))


def build_object(name: str, data: bytes) -> TransportObject:
    return TransportObject(name=name, pieces=build_pieces(memoryview(data)))


CONFIG, MERGES = b"{}", b"a b"
SMALL, BIG = bytes(10), bytes(range(256)) * (PIECE_BYTES // 256) + b"end"


def build_record(config: bytes = CONFIG, *, small: bytes = SMALL) -> PolicyRecord:
    """Return a record of a tensor in two pieces, a small one and two files."""
    rows = build_row("big", len(BIG), BIG), build_row("small", len(small), small)
    return PolicyRecord(
        pool=1, step=0, tensors=rows, files=(build_file("config.json", config), build_file("merges.txt", MERGES))
    )


RECORD = build_record()
FILES = build_object("config.json", CONFIG), build_object("merges.txt", MERGES)
BIG_PIECES, SMALL_PIECE = build_pieces(memoryview(BIG)), Piece(len(SMALL), compute_blake3(SMALL))


def build_anchor(*weights: Piece, files: tuple[TransportObject, ...] = FILES) -> TransportManifest:
    return TransportManifest(record=ONE, objects=(TransportObject(name=WEIGHTS, pieces=weights), *files))


ANCHOR = build_anchor(*BIG_PIECES, SMALL_PIECE)


@given(manifests)
def test_manifest__any_manifest__round_trips_under_its_address(manifest: TransportManifest):
    found = TransportManifest.from_bytes(manifest.to_bytes(), manifest.address)
    assert found == manifest
    assert found.address == manifest.address == compute_blake3(manifest.to_bytes())
    assert found.size == sum(each.size for each in manifest.objects)


def test_manifest__bytes__by_hand():
    manifest = TransportManifest(
        record=ONE,
        base=TWO,
        objects=(
            TransportObject(name="delta", pieces=(Piece(7, ONE),)),
            TransportObject(name="config.json", pieces=()),
        ),
    )
    data = b"CVT1" + b"\x11" * 32 + b"\x22" * 32 + b"\2\0" + b"\5delta\1\0\0\0" + b"\x0bconfig.json\0\0\0\0"
    assert manifest.to_bytes() == data + b"\x11" * 32 + b"\7\0\0\0" + bytes(65)
    assert manifest.to_bytes() == encode([b"delta", b"config.json"], [1, 0], encode_piece(7))
    assert read(manifest.to_bytes()) == manifest
    assert not manifest.is_anchor
    assert manifest.size == 7


def test_find__by_name():
    assert ANCHOR.is_anchor
    assert ANCHOR.find("merges.txt") == FILES[1]
    assert ANCHOR.find("delta") is None


def test_from_bytes__every_bit_flipped__does_not_have_the_address():
    data = TransportManifest(record=ONE, objects=FILES).sign(DOMAIN, TRAINER).to_bytes()
    for place in range(len(data)):
        for bit in range(8):
            wrong = bytearray(data)
            wrong[place] ^= 1 << bit
            with pytest.raises(ProtocolError, match=r"bad_manifest: .*do not have the hash"):
                TransportManifest.from_bytes(bytes(wrong), compute_blake3(data))


def test_require_signer__a_bit_of_every_byte_flipped_under_a_new_address__is_refused():
    """A relay can give any bytes the address that they have, but it cannot sign them."""
    data = TransportManifest(record=ONE, objects=FILES).sign(DOMAIN, TRAINER).to_bytes()
    codes = set()
    for place in range(len(data)):
        wrong = bytearray(data)
        wrong[place] ^= 1 << place % 8
        with pytest.raises(ProtocolError) as caught:
            read(bytes(wrong)).require_signer(DOMAIN, TRAINER.address)
        codes.add(caught.value.code)
    assert codes == {"bad_manifest", "bad_signature"}


def test_require_signer__trainer__stranger_unsigned_and_other_contract():
    signed = ANCHOR.sign(DOMAIN, TRAINER)
    read(signed.to_bytes()).require_signer(DOMAIN, TRAINER.address)
    for manifest, domain in (
        (ANCHOR, DOMAIN),
        (ANCHOR.sign(DOMAIN, STRANGER), DOMAIN),
        (signed, replace(DOMAIN, chain_id=1)),
        (signed, replace(DOMAIN, contract=STRANGER.address)),
        (replace(signed, record=TWO), DOMAIN),
        (replace(signed, base=TWO), DOMAIN),
        (replace(signed, objects=signed.objects[:1]), DOMAIN),
    ):
        with pytest.raises(ProtocolError, match="bad_signature"):
            manifest.require_signer(domain, TRAINER.address)


def test_sign__message__names_record_base_and_the_hash_of_all_other_bytes():
    signed = TransportManifest(record=ONE, base=TWO, objects=FILES).sign(DOMAIN, TRAINER)
    message = Transport(record=ONE, base=TWO, content=compute_blake3(signed.to_bytes()[:-65]))
    assert eip712.recover_signer(message, DOMAIN, "0x" + signed.to_bytes()[-65:].hex()) == TRAINER.address


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(69),
        encode([], []),
        encode([b"delta"], [0], mark=b"CVT2"),
        encode([b"delta"], [0], number=2),
        encode([b"a%d.txt" % i for i in range(65)], [0] * 65),
        encode([b"delta"], [1]),
        encode([b"delta"], [0xFFFFFFFF]),
        encode([b"delta"], [0], encode_piece(1)),
        encode([b"delta"], [0], end=bytes(64)),
        encode([b"delta"], [0], end=bytes(66)),
        encode([b"delta"], [1], encode_piece(0)),
        encode([b"delta"], [1], encode_piece(PIECE_BYTES + 1)),
        encode([b"delta", b"delta"], [0, 0]),
        encode([b""], [0]),
        encode([b"../a.json"], [0]),
        encode([b"/a.json"], [0]),
        encode([b"a\\b.json"], [0]),
        encode([b"a.json\0"], [0]),
        encode([b"model.safetensors"], [0]),
        encode([b"record.json"], [0]),
        encode([b"Weights"], [0]),
        encode([b"\xff.json"], [0]),
    ],
)
def test_from_bytes__malformed__is_refused(data: bytes):
    with pytest.raises(ProtocolError, match="bad_manifest") as caught:
        read(data)
    assert caught.value.status == 502


@pytest.mark.parametrize("size", range(0, 120, 7))
def test_from_bytes__cut_off__is_refused(size: int):
    data = encode([b"delta"], [1], encode_piece(1))
    assert read(data)
    with pytest.raises(ProtocolError, match="bad_manifest"):
        read(data[:size])


def test_from_bytes__too_large__is_refused_before_hashing():
    with pytest.raises(ProtocolError, match=r"bad_manifest: .* exceeds 16777216 bytes"):
        TransportManifest.from_bytes(bytes(MAX_MANIFEST_BYTES + 1), ONE)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1], [("a", [1])]),
        ([3, 7], [("ab", [10])]),
        ([3, 8], [("a", [3]), ("b", [8])]),
        ([4, 4, 4], [("ab", [8]), ("c", [4])]),
        ([10], [("a", [10])]),
        ([1, 10, 1], [("a", [1]), ("b", [10]), ("c", [1])]),
        ([11], [("a", [10, 1])]),
        ([11, 1, 2], [("a", [10, 1]), ("bc", [3])]),
        ([5, 25, 5], [("a", [5]), ("b", [10, 10, 5]), ("c", [5])]),
        ([20, 20], [("a", [10, 10]), ("b", [10, 10])]),
    ],
)
def test_list_runs__pieces_of_ten_bytes__by_hand(
    sizes: list[int], expected: list[tuple[str, list[int]]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(transport, "PIECE_BYTES", 10)
    monkeypatch.setattr(transport, "cut", lambda size: [10] * (size // 10) + ([size % 10] if size % 10 else []))
    rows = tuple(build_row("abc"[i], size) for i, size in enumerate(sizes))
    runs = list(list_runs(rows))
    assert [("".join(row.name for row in run.rows), list(run.sizes)) for run in runs] == expected


def test_list_runs__tensors_of_one_piece_and_one_byte_more():
    rows = build_row("a", PIECE_BYTES), build_row("b", PIECE_BYTES + 1), build_row("c", PIECE_BYTES)
    assert list(list_runs(rows)) == [
        Run(rows[:1], (PIECE_BYTES,)),
        Run(rows[1:2], (PIECE_BYTES, 1)),
        Run(rows[2:], (PIECE_BYTES,)),
    ]


def test_require_reaches__anchor_of_its_record__is_accepted():
    ANCHOR.require_reaches(RECORD, None)


def test_require_reaches__small_tensors_in_one_piece__are_not_checked_yet():
    """Only the piece itself shows the digests of the tensors in it."""
    rows = build_row("a", 2, b"12"), build_row("b", 3, b"345")
    record = PolicyRecord(pool=1, step=0, tensors=rows, files=())
    build_anchor(Piece(5, ONE), files=()).require_reaches(record, None)
    with pytest.raises(ProtocolError, match=r"bad_manifest: .*do not have the sizes"):
        build_anchor(Piece(2, ONE), Piece(3, ONE), files=()).require_reaches(record, None)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (build_anchor(*BIG_PIECES), "pieces of small do not have the sizes"),
        (build_anchor(BIG_PIECES[0], SMALL_PIECE), "pieces of big do not have the sizes"),
        (build_anchor(SMALL_PIECE, *BIG_PIECES), "pieces of big do not have the sizes"),
        (build_anchor(*BIG_PIECES, Piece(9, ONE)), "pieces of small do not have the sizes"),
        (build_anchor(BIG_PIECES[0], Piece(3, ONE), SMALL_PIECE), "pieces of big do not have the digest"),
        (build_anchor(*BIG_PIECES, Piece(10, ONE)), "pieces of small do not have the digest"),
        (build_anchor(*BIG_PIECES, SMALL_PIECE, SMALL_PIECE), "more pieces than its record"),
        (build_anchor(*BIG_PIECES, SMALL_PIECE, files=FILES[:1]), "objects are not weights and 2 files"),
        (build_anchor(*BIG_PIECES, SMALL_PIECE, files=FILES[::-1]), "objects are not weights and 2 files"),
        (replace(ANCHOR, objects=(build_object(DELTA, b"1"), *FILES)), "objects are not weights and 2 files"),
        (replace(ANCHOR, objects=(*FILES, ANCHOR.objects[0])), "objects are not weights and 2 files"),
        (
            build_anchor(*BIG_PIECES, SMALL_PIECE, files=(build_object("config.json", b"[]"), FILES[1])),
            "pieces of config.json do not have the digest",
        ),
        (
            build_anchor(*BIG_PIECES, SMALL_PIECE, files=(build_object("config.json", b"{ }"), FILES[1])),
            "pieces of config.json do not have the digest",
        ),
    ],
)
def test_require_reaches__anchor_that_contradicts_its_record__is_refused(manifest: TransportManifest, message: str):
    with pytest.raises(ProtocolError, match=f"bad_manifest: .*{message}"):
        manifest.require_reaches(RECORD, None)


def test_require_reaches__file_of_two_pieces__has_the_digest_of_both():
    data = bytes(PIECE_BYTES) + b"x"
    record = PolicyRecord(
        pool=1, step=0, tensors=(build_row("small", 10, SMALL),), files=(build_file("merges.txt", data),)
    )
    whole = build_object("merges.txt", data)
    assert combine([piece.digest for piece in whole.pieces]) == record.files[0].digest
    build_anchor(SMALL_PIECE, files=(whole,)).require_reaches(record, None)
    swapped = replace(whole, pieces=whole.pieces[::-1])
    with pytest.raises(ProtocolError, match=r"bad_manifest: .*pieces of merges\.txt"):
        build_anchor(SMALL_PIECE, files=(swapped,)).require_reaches(record, None)


def build_delta(*files: TransportObject) -> TransportManifest:
    return TransportManifest(record=ONE, base=TWO, objects=(build_object(DELTA, b"changes"), *files))


def test_require_reaches__delta__has_the_files_that_differ_from_the_base():
    build_delta().require_reaches(RECORD, RECORD)
    build_delta(FILES[0]).require_reaches(RECORD, build_record(b"[]"))


@pytest.mark.parametrize(
    ("manifest", "base", "message"),
    [
        (build_delta(), build_record(b"[]"), "objects are not delta and 1 files"),
        (build_delta(FILES[0]), RECORD, "objects are not delta and 0 files"),
        (build_delta(FILES[1]), build_record(b"[]"), "objects are not delta and 1 files"),
        (build_delta(build_object("config.json", b"()")), build_record(b"[]"), "pieces of config.json"),
        (ANCHOR, RECORD, "objects are not delta and 0 files"),
        (build_delta(), build_record(small=bytes(11)), "its base has other tensors"),
    ],
)
def test_require_reaches__delta_that_contradicts_its_records__is_refused(
    manifest: TransportManifest, base: PolicyRecord, message: str
):
    with pytest.raises(ProtocolError, match=f"bad_manifest: .*{message}"):
        manifest.require_reaches(RECORD, base)


def test_manifest__zero_base__is_an_anchor():
    assert TransportManifest(record=ONE, base=ZERO_HASH, objects=FILES).is_anchor
