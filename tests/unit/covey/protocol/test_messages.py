"""Messages against an independent EIP-712 implementation, including Keccak, and forms that the contracts refuse."""

import random
from dataclasses import replace
from enum import IntEnum

import pytest
from eth_account import Account
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.chain.wallet import wallet_from_key
from covey.errors import ProtocolError
from covey.protocol import eip712, messages
from covey.protocol.eip712 import Domain
from covey.protocol.epochs import EpochHeader
from covey.protocol.messages import Countersignature, NodeRegistration, Receipt, Verdict

pytestmark = pytest.mark.unit

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
CONTRACT = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
DOMAIN = Domain(chain_id=31337, contract=CONTRACT)
NODE = wallet_from_key(b"\x11" * 32)
ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
MASK = 2**64 - 1
ROTATIONS = [0, 1, 62, 28, 27, 36, 44, 6, 55, 20, 3, 10, 43, 25, 39, 41, 45, 15, 21, 8, 18, 2, 61, 56, 14]

TYPES = {
    NodeRegistration: "NodeRegistration(uint256 pool,address contributor,address node,uint256 nonce,uint256 deadline)",
    Receipt: "Receipt(uint256 pool,uint256 task,uint256 lease,address node,address contributor,uint64 policyVersion,"
    "bytes32 workKey,uint32 groups,uint64 units,uint64 deadline)",
    Countersignature: "Countersignature(bytes32 receiptHash,uint64 signedAt,uint64 dueBy)",
    EpochHeader: "EpochHeader(uint256 pool,uint64 epoch,bytes32 workRoot,bytes32 rewardRoot,uint64 leafCount,"
    "uint64 units,uint32 verdicts,bytes32 dataHash,bytes32 previousHash)",
    Verdict: "Verdict(uint256 pool,bytes32 receiptHash,bytes32 workKey,address validator,uint8 outcome,uint8 reason,"
    "uint8 severity,uint64 units,bytes32 evidenceHash,uint64 deadline)",
}


def rotate(word, by):
    return (word << by | word >> (64 - by)) & MASK if by else word


def permute(lanes):
    """Apply Keccak-f[1600] to 25 lanes, with lane (x, y) at index x + 5y."""
    register = 1
    for _ in range(24):
        columns = [lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20] for x in range(5)]
        theta = [columns[(x - 1) % 5] ^ rotate(columns[(x + 1) % 5], 1) for x in range(5)]
        lanes = [lane ^ theta[i % 5] for i, lane in enumerate(lanes)]
        moved = [0] * 25
        for i, lane in enumerate(lanes):
            x, y = i % 5, i // 5
            moved[y + 5 * ((2 * x + 3 * y) % 5)] = rotate(lane, ROTATIONS[i])
        lanes = [
            moved[i] ^ (~moved[i // 5 * 5 + (i + 1) % 5] & moved[i // 5 * 5 + (i + 2) % 5] & MASK) for i in range(25)
        ]
        for bit in range(7):
            lanes[0] ^= (register & 1) << (2**bit - 1)
            register = register << 1 ^ (0x171 if register >> 7 else 0)
    return lanes


def keccak(data):
    padded = bytearray(data + b"\x01" + bytes(-(len(data) + 1) % 136))
    padded[-1] |= 0x80
    lanes = [0] * 25
    for start in range(0, len(padded), 136):
        for i in range(17):
            lanes[i] ^= int.from_bytes(padded[start + 8 * i : start + 8 * i + 8], "little")
        lanes = permute(lanes)
    return b"".join(lane.to_bytes(8, "little") for lane in lanes[:4])


def to_word(value):
    return bytes.fromhex(value[2:]).rjust(32, b"\0") if isinstance(value, str) else int(value).to_bytes(32, "big")


def hash_struct(message):
    fields = [getattr(message, name) for name in message.TYPES]
    return keccak(keccak(TYPES[type(message)].encode()) + b"".join(map(to_word, fields)))


def hash_domain(domain):
    kind = b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
    return keccak(keccak(kind) + keccak(b"Covey") + keccak(b"3") + to_word(domain.chain_id) + to_word(domain.contract))


addresses = st.binary(min_size=32, max_size=32).map(lambda raw: Account.from_key(keccak(raw)).address)
FIELDS = {
    "address": st.sampled_from([ALICE, NODE.address, "0x" + "00" * 20]),
    "bytes32": st.binary(min_size=32, max_size=32).map(lambda raw: "0x" + raw.hex()),
} | {f"uint{bits}": st.integers(0, 2**bits - 1) for bits in (8, 32, 64, 256)}


def build_strategy(kind):
    return st.builds(kind, **{name: FIELDS[solidity] for name, solidity in kind.TYPES.items()})


any_message = st.one_of(*map(build_strategy, TYPES))
RECEIPT = Receipt(
    pool=1,
    task=7,
    lease=9,
    node=NODE.address,
    contributor=ALICE,
    policy_version=3,
    work_key="0x" + "ab" * 32,
    groups=2,
    units=64,
    deadline=1_700_000_000,
)


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
        (b"abc", "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"),
        (b"Transfer(address,address,uint256)", "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"),
    ],
)
def test_keccak_of_this_file__known_answers(data, digest):
    assert keccak(data).hex() == digest


@settings(max_examples=60)
@given(any_message, st.integers(0, 2**64))
def test_digest__any_message__equals_the_second_implementation(message, chain_id):
    domain = Domain(chain_id=chain_id, contract=CONTRACT)
    struct = hash_struct(message)
    assert eip712.compute_struct_hash(message) == "0x" + struct.hex()
    expected = keccak(b"\x19\x01" + hash_domain(domain) + struct)
    assert eip712.compute_digest(message, domain) == "0x" + expected.hex()


@settings(max_examples=25)
@given(any_message)
def test_sign__any_message__recovers_its_signer_only_under_its_domain(message):
    signature = eip712.sign(message, DOMAIN, NODE)
    assert eip712.recover_signer(message, DOMAIN, signature) == NODE.address
    eip712.require_signer(message, DOMAIN, signature, NODE.address)
    for other in (replace(DOMAIN, chain_id=1), replace(DOMAIN, contract=ALICE)):
        with pytest.raises(ProtocolError, match="bad_signature"):
            eip712.require_signer(message, other, signature, NODE.address)


@pytest.mark.parametrize("field", Receipt.TYPES)
def test_require_signer__one_field_altered__refused(field):
    signature = eip712.sign(RECEIPT, DOMAIN, NODE)
    value = getattr(RECEIPT, field)
    other = value + 1 if isinstance(value, int) else ("0x" + "ac" * 32 if len(value) == 66 else CONTRACT)
    with pytest.raises(ProtocolError, match="bad_signature: the message was not signed by") as caught:
        eip712.require_signer(replace(RECEIPT, **{field: other}), DOMAIN, signature, NODE.address)
    assert caught.value.status == 401


def test_sign__same_message__same_signature():
    """Signatures are deterministic (RFC 6979), so a restart never makes a second receipt for one slot."""
    assert eip712.sign(RECEIPT, DOMAIN, NODE) == eip712.sign(RECEIPT, DOMAIN, NODE)


def test_recover_signer__high_s__refused_because_the_contracts_refuse_it():
    raw = bytes.fromhex(eip712.sign(RECEIPT, DOMAIN, NODE)[2:])
    flipped = raw[:32] + (ORDER - int.from_bytes(raw[32:64], "big")).to_bytes(32, "big") + bytes([55 - raw[64]])
    digest = bytes.fromhex(eip712.compute_digest(RECEIPT, DOMAIN)[2:])
    assert Account._recover_hash(digest, signature=flipped) == NODE.address  # eth-account accepts it.
    with pytest.raises(ProtocolError, match="s is high"):
        eip712.recover_signer(RECEIPT, DOMAIN, "0x" + flipped.hex())


@pytest.mark.parametrize("v", [0, 1, 26, 29, 35, 36, 37, 38, 255])
def test_recover_signer__v_not_27_or_28__refused(v):
    signature = eip712.sign(RECEIPT, DOMAIN, NODE)[:130] + f"{v:02x}"
    with pytest.raises(ProtocolError, match="bad_signature"):
        eip712.recover_signer(RECEIPT, DOMAIN, signature)


@pytest.mark.parametrize(
    "signature", ["", "0x", "0x" + "00" * 65, "0x" + "ff" * 64 + "1b", "0x" + "zz" * 65, "00" * 66, "0x" + "AB" * 65]
)
def test_recover_signer__not_a_signature__refused(signature):
    with pytest.raises(ProtocolError, match="bad_signature"):
        eip712.recover_signer(RECEIPT, DOMAIN, signature)


def test_recover_signer__1000_mutations__refused_or_another_signer():
    rng, signature = random.Random(5), eip712.sign(RECEIPT, DOMAIN, NODE)
    codes = set()
    for _ in range(1000):
        index = rng.randrange(2, len(signature))
        altered = signature[:index] + rng.choice("0123456789abcdefgG \n٠") + signature[index + 1 :]
        if altered == signature:
            continue
        try:
            assert eip712.recover_signer(RECEIPT, DOMAIN, altered) != NODE.address
        except ProtocolError as error:
            codes.add(error.code)
    assert codes == {"bad_signature"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pool", -1),
        ("pool", 1 << 256),
        ("pool", True),
        ("pool", "1"),
        ("pool", 1.0),
        ("policy_version", 1 << 64),
        ("groups", 1 << 32),
        ("node", NODE.address.lower()),
        ("node", "0x" + "00" * 19),
        ("node", None),
        ("work_key", "0x" + "AB" * 32),
        ("work_key", "0x" + "ab " * 21 + " "),
        ("work_key", "0x" + "ab" * 31),
        ("work_key", b"\xab" * 32),
    ],
)
def test_encode__value_that_does_not_fit__refused_by_name(field, value):
    with pytest.raises(ProtocolError, match=f"bad_message: the field {field} of Receipt is not a"):
        eip712.sign(replace(RECEIPT, **{field: value}), DOMAIN, NODE)


def test_encode__enumeration__is_encoded_as_its_number():
    class Outcome(IntEnum):
        REJECT = 2

    plain = Verdict(
        pool=1,
        receipt_hash="0x" + "01" * 32,
        work_key="0x" + "02" * 32,
        validator=ALICE,
        outcome=2,
        reason=5,
        severity=2,
        units=0,
        evidence_hash="0x" + "03" * 32,
        deadline=5,
    )
    assert eip712.compute_struct_hash(replace(plain, outcome=Outcome.REJECT)) == eip712.compute_struct_hash(plain)


def test_commitment__by_hand__keccak_of_digest_and_salt():
    digest, salt = "0x" + "01" * 32, "0x" + "02" * 32
    expected = keccak(bytes.fromhex("01" * 32 + "02" * 32))
    assert messages.compute_commitment(digest, salt) == "0x" + expected.hex()
    assert messages.compute_commitment(salt, digest) != messages.compute_commitment(digest, salt)


def test_to_dict__names_in_order_of_the_type():
    names = TYPES[Receipt].partition("(")[2].rstrip(")").split(",")
    spelled = [name.split(" ")[1] for name in names]
    snake = ["".join("_" + c.lower() if c.isupper() else c for c in name) for name in spelled]
    assert list(eip712.to_dict(RECEIPT)) == snake
