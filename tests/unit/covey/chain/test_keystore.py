import getpass
import json
import sys
from pathlib import Path

import pytest

from covey.chain.keystore import PASSPHRASE_FILE, decrypt_keystore, encrypt_key, read_passphrase
from covey.chain.wallet import load_key, save_key, wallet_from_key
from covey.errors import OperatorError

pytestmark = pytest.mark.unit

KEY = bytes.fromhex("7a28b5ba57c53603b0b07b56bba752f7784bf506fa95edc395f5cf6c7514fe9d")
KEYSTORE = {
    "version": 3,
    "id": "3198bc9c-6672-5ab3-d995-4942343ae5b6",
    "crypto": {
        "cipher": "aes-128-ctr",
        "cipherparams": {"iv": "6087dab2f9fdbbfaddc31a909735c1e6"},
        "ciphertext": "5318b4d5bcd28de64ee5559e671353e16f075ecae9f99c7a79a38af5f869aa46",
        "kdf": "pbkdf2",
        "kdfparams": {
            "c": 262144,
            "dklen": 32,
            "prf": "hmac-sha256",
            "salt": "ae3cd4e7013836a3df6bd7241b12db061dbe2c6785853cce422d148a624ce0bd",
        },
        "mac": "517ead924a9d0dc3124507e3393d175ce3ff7c1e96529c6c555ce9e51205e9b2",
    },
}
"""Test vector of the definition of keystores, with the passphrase "testpassword" and KEY."""


@pytest.fixture
def passphrase(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "passphrase"
    file.write_text("testpassword\nsecond line\n")
    file.chmod(0o600)
    monkeypatch.setenv(PASSPHRASE_FILE, str(file))
    decrypt_keystore.cache_clear()
    return file


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_load_key__keystore_of_the_definition__is_its_key(passphrase: Path, tmp_path: Path):
    file = write(tmp_path / "keystore.json", json.dumps(KEYSTORE))
    assert load_key(file).key == KEY
    passphrase.unlink()
    assert load_key(file).address == wallet_from_key(KEY).address, "it is asked for once"


def test_save_key__passphrase__is_a_keystore_that_can_be_read_again(passphrase: Path, tmp_path: Path):
    file = tmp_path / "new.json"
    assert save_key(file, KEY, passphrase="testpassword").key == KEY
    assert file.stat().st_mode & 0o777 == 0o600
    assert KEY.hex() not in file.read_text()
    assert load_key(file).key == KEY


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"version": 1, "crypto": {}}', json.dumps(KEYSTORE | {"crypto": {}}), '{"version": 3}']
)
def test_load_key__damaged_keystore__is_refused(passphrase: Path, tmp_path: Path, text: str):
    with pytest.raises(OperatorError, match="bad_key"):
        load_key(write(tmp_path / "keystore.json", text))


def test_load_key__wrong_passphrase__is_refused_without_its_words(passphrase: Path, tmp_path: Path):
    passphrase.write_text("anotherword")
    with pytest.raises(OperatorError, match=r"bad_key: the keystore .* cannot be decrypted") as caught:
        load_key(write(tmp_path / "keystore.json", json.dumps(KEYSTORE)))
    assert "anotherword" not in str(caught.value)


def test_read_passphrase__file_that_others_can_read__is_refused(passphrase: Path):
    passphrase.chmod(0o644)
    with pytest.raises(OperatorError, match="key_exposed"):
        read_passphrase(Path("k"))


def test_read_passphrase__terminal__is_typed_twice_if_it_is_new(monkeypatch: pytest.MonkeyPatch):
    typed = iter(["one", "one", "one", "two", "three", ""])
    monkeypatch.delenv(PASSPHRASE_FILE, raising=False)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(getpass, "getpass", lambda _: next(typed))
    assert read_passphrase(Path("k"), is_new=True) == "one"
    with pytest.raises(OperatorError, match="differ"):
        read_passphrase(Path("k"), is_new=True)
    assert read_passphrase(Path("k")) == "three"
    with pytest.raises(OperatorError, match="no_passphrase"):
        read_passphrase(Path("k"))


def test_read_passphrase__neither_file_nor_terminal__names_the_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(PASSPHRASE_FILE, raising=False)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(OperatorError, match="Set COVEY_PASSPHRASE_FILE"):
        read_passphrase(Path("k"))


def test_encrypt_key__same_key_twice__differs():
    assert encrypt_key(KEY, "x") != encrypt_key(KEY, "x")
