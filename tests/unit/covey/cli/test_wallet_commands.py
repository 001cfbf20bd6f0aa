import json
from pathlib import Path

import pytest

from covey.chain.keystore import PASSPHRASE_FILE
from tests.unit.conftest import Command

pytestmark = pytest.mark.unit


def test_wallet_new__encrypted__is_a_keystore_whose_address_wallet_show_prints(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    secret = tmp_path / "passphrase"
    secret.write_text("a long passphrase\n")
    secret.chmod(0o600)
    monkeypatch.setenv(PASSPHRASE_FILE, str(secret))
    made = command("wallet", "new", str(tmp_path / "key"), "--encrypt")
    assert json.loads((tmp_path / "key").read_text())["version"] == 3
    assert command("wallet", "show", str(tmp_path / "key")) == made
    assert (made.code, len(made.out.strip())) == (0, 42)


def test_wallet_new__encrypted_without_a_passphrase__creates_no_file(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv(PASSPHRASE_FILE, raising=False)
    answer = command("wallet", "new", str(tmp_path / "key"), "--encrypt")
    assert (answer.code, "no_passphrase" in answer.err) == (1, True)
    assert list(tmp_path.iterdir()) == []
