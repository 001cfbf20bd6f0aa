"""Deployment and key files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from eth_account.messages import encode_defunct

from covey.chain.deployment import Deployment
from covey.chain.wallet import load_key, save_key, wallet_from_key
from covey.errors import OperatorError
from covey.protocol.secp256k1 import hash_personal

pytestmark = pytest.mark.unit

ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
KEY = bytes.fromhex("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80")
DEPLOYMENT = Deployment(
    chain_id=31337,
    rpc_url="http://127.0.0.1:1",
    start_block=4,
    start_hash="0x" + "ab" * 32,
    pool_registry=ALICE,
    node_registry=ALICE,
    policy_registry=ALICE,
    stake_manager=ALICE,
    epoch_ledger=ALICE,
    slashing_court=ALICE,
    token=ALICE,
)


def test_deployment__saved_and_loaded__round_trips(tmp_path: Path):
    file = tmp_path / "new" / "deployment.json"
    DEPLOYMENT.save(file)
    replace(DEPLOYMENT, start_block=5).save(file)
    assert Deployment.load(file) == replace(DEPLOYMENT, start_block=5)
    assert [path.name for path in file.parent.iterdir()] == ["deployment.json"]


def test_deployment__file_of_an_older_version__has_no_hash_of_its_chain(tmp_path: Path):
    file = tmp_path / "deployment.json"
    DEPLOYMENT.save(file)
    values = json.loads(file.read_text())
    del values["start_hash"]
    file.write_text(json.dumps(values))
    assert Deployment.load(file) == replace(DEPLOYMENT, start_hash=None)


@pytest.mark.parametrize(
    "url", ["https://node.example/v2/secret", "https://me:secret@node.example", "http://a?k=secret"]
)
def test_deployment__node_of_a_provider__is_not_in_the_file(tmp_path: Path, url: str):
    file = tmp_path / "deployment.json"
    replace(DEPLOYMENT, rpc_url=url).save(file)
    assert "secret" not in file.read_text()
    loaded = Deployment.load(file)
    assert loaded == replace(DEPLOYMENT, rpc_url=None)
    with pytest.raises(OperatorError, match=r"no_rpc: .* chain 31337\. .*COVEY_RPC_URL"):
        loaded.choose_node()
    assert (loaded.choose_node("http://own"), DEPLOYMENT.choose_node("http://own")) == ("http://own", "http://own")
    assert DEPLOYMENT.choose_node() == "http://127.0.0.1:1"


def test_deployment__missing_file__raises_with_a_fix(tmp_path: Path):
    with pytest.raises(OperatorError) as caught:
        Deployment.load(tmp_path / "none.json")
    assert caught.value.code == "no_deployment"


@pytest.mark.parametrize(
    "change",
    [
        {"token": "0x12"},
        {"token": ALICE.lower()},
        {"chain_id": "1"},
        {"unknown": 1},
        {"token": None},
        {"chain_id": True},
        {"start_block": -1},
        {"start_block": 1.0},
        {"start_hash": "0x12"},
        {"start_hash": 7},
        {"rpc_url": 5},
        {"rpc_url": "file:///x"},
        {"rpc_url": ""},
    ],
)
def test_deployment__invalid_content__is_refused(tmp_path: Path, change: dict):
    file = tmp_path / "deployment.json"
    DEPLOYMENT.save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(OperatorError) as caught:
        Deployment.load(file)
    assert caught.value.code == "bad_deployment"


def test_get_contracts__all__are_named_without_the_token():
    assert DEPLOYMENT.get_contracts() == {
        "PoolRegistry": DEPLOYMENT.pool_registry,
        "NodeRegistry": DEPLOYMENT.node_registry,
        "PolicyRegistry": DEPLOYMENT.policy_registry,
        "StakeManager": DEPLOYMENT.stake_manager,
        "EpochLedger": DEPLOYMENT.epoch_ledger,
        "SlashingCourt": DEPLOYMENT.slashing_court,
    }


def write_secret(file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text)


def test_load_key__with_or_without_prefix__gives_the_known_address(tmp_path: Path):
    file = tmp_path / "key"
    for text in (KEY.hex(), "0x" + KEY.hex() + "\n"):
        write_secret(file, text)
        assert load_key(file).address == ALICE


def test_save_key__new_file__is_readable_by_its_owner_only_and_never_overwritten(tmp_path: Path):
    file = tmp_path / "key"
    assert save_key(file, KEY).address == ALICE
    assert file.stat().st_mode & 0o777 == 0o600
    assert load_key(file).address == ALICE
    with pytest.raises(OperatorError) as caught:
        save_key(file, KEY)
    assert caught.value.code == "key_exists"


@pytest.mark.parametrize("text", ["", "0x12", "zz" * 32, "00" * 32, KEY.hex() + "00"])
def test_load_key__not_a_key__is_refused_without_showing_it(tmp_path: Path, text: str):
    file = tmp_path / "key"
    write_secret(file, text)
    with pytest.raises(OperatorError) as caught:
        load_key(file)
    assert caught.value.code == "bad_key"
    assert KEY.hex() not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o700 | 0o001])
def test_load_key__file_that_others_may_open__is_refused_with_a_chmod_command(tmp_path: Path, mode: int):
    file = tmp_path / "key"
    save_key(file, KEY)
    file.chmod(mode)
    with pytest.raises(OperatorError, match=f"key_exposed: .*mode {mode:o}. Run chmod 600 {file}$"):
        load_key(file)
    for closed in (0o600, 0o400):
        file.chmod(closed)
        assert load_key(file).address == ALICE


def test_load_key__bytes_that_are_not_text__are_refused(tmp_path: Path):
    write_secret(tmp_path / "key", "")
    (tmp_path / "key").write_bytes(b"\xff\xfe" * 32)
    with pytest.raises(OperatorError, match="bad_key"):
        load_key(tmp_path / "key")


def test_save_key__no_folder__is_refused(tmp_path: Path):
    with pytest.raises(OperatorError, match=r"no_folder: .*No such file or directory"):
        save_key(tmp_path / "none" / "key", KEY)


def test_load_key__no_file__is_refused(tmp_path: Path):
    with pytest.raises(OperatorError) as caught:
        load_key(tmp_path / "none")
    assert caught.value.code == "no_key"


def test_wallet__printed__does_not_show_its_key():
    wallet = wallet_from_key(KEY)
    assert KEY.hex() not in repr(wallet)
    assert repr(wallet) == f"Wallet(address='{ALICE}')"


@pytest.mark.parametrize("key", [b"", b"\x11" * 31, b"\x11" * 33, b"\0" * 32, b"\xff" * 32])
def test_wallet__not_a_key__is_refused(key):
    with pytest.raises(ValueError, match=r"."):
        wallet_from_key(key)


def test_sign_transaction__same_transaction_twice__gives_the_same_bytes_and_their_hash():
    from eth_utils.crypto import keccak

    wallet = wallet_from_key(KEY)
    transaction = {
        "type": 2,
        "chainId": 31337,
        "nonce": 3,
        "to": ALICE,
        "data": b"\x01",
        "value": 4,
        "gas": 50_000,
        "maxFeePerGas": 10,
        "maxPriorityFeePerGas": 2,
    }
    signed = wallet.sign_transaction(transaction)
    assert signed == wallet.sign_transaction(dict(transaction))
    assert signed.raw[0] == 2
    assert signed.hash == "0x" + keccak(signed.raw).hex()


def test_sign_digest__text__recovers_to_the_address():
    from eth_account import Account

    signature = wallet_from_key(KEY).sign_digest(hash_personal(b"hello"))
    assert Account.recover_message(encode_defunct(text="hello"), signature=signature) == ALICE
