import json
from importlib import resources

import pytest
from eth_abi.abi import encode
from hypothesis import given
from hypothesis import strategies as st

from covey.chain import abi_codec

pytestmark = pytest.mark.unit

ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
words = st.binary(min_size=32, max_size=32).map(lambda raw: "0x" + raw.hex())
addresses = st.binary(min_size=20, max_size=20).map(abi_codec.to_checksum_address)


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        ("transfer", (ALICE, 5), "a9059cbb" + "f39fd6e51aad88f6f4ce6ab8827279cfffb92266".zfill(64) + "5".zfill(64)),
        ("balanceOf", (ALICE,), "70a08231" + "f39fd6e51aad88f6f4ce6ab8827279cfffb92266".zfill(64)),
        ("totalSupply", (), "18160ddd"),
    ],
)
def test_encode_call__erc20__equals_the_bytes_of_the_standard(function, args, expected):
    assert abi_codec.encode_call("TestToken", function, args).hex() == expected


def test_encode_call__struct_and_arrays__equals_flat_encoding_by_eth_abi():
    amounts = (10**9, 10, 10, 20, 1, 20, 2, 60, 7, 8, 4, 10_000, 0, 2, False)
    terms = (*amounts, ALICE, 15, ALICE, 100, ALICE, 20, ALICE, 3, ALICE, "0x" + "11" * 32)
    posting = "uint56,uint24,uint24,uint24,uint24,uint96,uint8"
    slashing = "uint96,uint80,uint32,uint8,uint16,uint8,uint8,bool"
    accounts = "address,uint96,address,uint96,address,uint96,address,uint96,address"
    kinds = f"({posting},{slashing},{accounts},bytes32)"
    data = abi_codec.encode_call("PoolRegistry", "createPool", (terms, [ALICE], "text"))
    plain = (*terms[:-1], bytes([0x11]) * 32)
    assert data[4:] == encode([kinds, "address[]", "string"], [plain, [ALICE], "text"])
    assert data[:4].hex() == abi_codec.load_artifact("PoolRegistry").functions["createPool"].digest[:4].hex()


def test_encode_values__wrong_count__raises():
    with pytest.raises(ValueError, match="1 values were given for 2 parameters"):
        abi_codec.encode_call("TestToken", "transfer", (ALICE,))


def test_encode_deployment__constructor_arguments__follow_the_bytecode():
    data = abi_codec.encode_deployment("PolicyRegistry", (ALICE,))
    assert data == abi_codec.load_artifact("PolicyRegistry").bytecode + bytes(12) + bytes.fromhex(ALICE[2:])


@given(st.tuples(words, words, addresses, addresses, *[st.integers(0, 2**64 - 1)] * 3, *[st.integers(0, 255)] * 2))
def test_decode_values__encoded_leaf__round_trips(parts):
    receipt, key, node, contributor, task, version, block, outcome, reason = parts
    leaf = (receipt, key, node, contributor, task, version, block, outcome, reason, 7, receipt)
    params = abi_codec.load_artifact("EpochLedger").functions["hashWorkLeaf"].inputs
    assert abi_codec.decode_values(params, abi_codec.encode_values(params, (leaf,))) == (leaf,)


@given(st.binary(max_size=200))
def test_decode_result__any_bytes__decodes_or_raises_value_error(data):
    try:
        values = abi_codec.decode_result("PoolRegistry", "getValidators", data)
    except ValueError:
        return
    assert all(isinstance(value, str) for value in values[0])


@pytest.mark.parametrize(
    ("error", "at", "shown"),
    [
        ("NotFinal(uint256)", 1_764_053_023, "NotFinal(2025-11-25 06:43:43 UTC)"),
        ("SignatureExpired(uint256)", 0, "SignatureExpired(1970-01-01 00:00:00 UTC)"),
        ("PoolNotClosed(uint256)", (1 << 256) - 1, "PoolNotClosed(never)"),
        ("InvalidWindow(uint256)", 1_764_053_023, "InvalidWindow(1764053023)"),
    ],
)
def test_describe_revert__unix_time__is_a_date(error, at, shown):
    assert abi_codec.describe_revert(abi_codec.keccak(text=error)[:4] + encode(["uint256"], [at])) == shown


def test_describe_revert__custom_error__names_it_with_its_values():
    selector = abi_codec.keccak(text="WrongStep(uint256,uint256)")[:4]
    assert abi_codec.describe_revert(selector + encode(["uint256", "uint256"], [3, 9])) == "WrongStep(3, 9)"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "no reason was returned"),
        (bytes.fromhex("08c379a0") + encode(["string"], ["too poor"]), "too poor"),
        (bytes.fromhex("4e487b71") + encode(["uint256"], [0x11]), "Panic(0x11)"),
        (bytes.fromhex("deadbeef"), "unknown error 0xdeadbeef"),
        (bytes.fromhex("08c379a0ff"), "reason that cannot be decoded: 0x08c379a0ff"),
    ],
)
def test_describe_revert__other_data__is_described(data, expected):
    assert abi_codec.describe_revert(data) == expected


@given(st.binary(max_size=100))
def test_describe_revert__any_bytes__never_raises(data):
    assert abi_codec.describe_revert(data)


@pytest.mark.parametrize(
    ("name", "expected"), [("policyVersion", "policy_version"), ("pool", "pool"), ("caseId", "case_id")]
)
def test_to_snake__solidity_name__becomes_pythons(name, expected):
    assert abi_codec.to_snake(name) == expected


def test_load_artifact__all_contracts__have_bytecode_and_no_overloads():
    for name in abi_codec.CONTRACT_NAMES:
        artifact = abi_codec.load_artifact(name)
        assert artifact.name == name
        assert artifact.bytecode[0] in (0x60, 0x61), "EVM code starts with PUSH1 or PUSH2"
        entries = json.loads(resources.files("covey.chain").joinpath("abi", f"{name}.json").read_text())["abi"]
        assert len(artifact.functions) == sum(entry["type"] == "function" for entry in entries)
        assert len(artifact.bytecode) < 49_152, "the limit of EIP-3860"
