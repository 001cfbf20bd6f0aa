"""Where Anvil is looked for, in a checkout and where only the wheel is installed."""

import json
from pathlib import Path

import pytest

import covey
from covey.devnet.anvil import ANVIL_VERSION, find_anvil
from covey.errors import OperatorError

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[4]
NATIVE = Path("node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil")


def write_program(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o700)
    return file


@pytest.fixture(autouse=True)
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make Covey a package in a folder without a checkout, and return the only folder in PATH."""
    monkeypatch.delenv("COVEY_ANVIL", raising=False)
    monkeypatch.setattr(covey, "__file__", str(tmp_path / "site-packages" / "covey" / "__init__.py"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "bin"


def test_find_anvil__nowhere__names_commands_that_need_no_checkout():
    with pytest.raises(OperatorError) as caught:
        find_anvil()
    assert caught.value.code == "no_anvil"
    assert f"npm install -g @foundry-rs/anvil@{ANVIL_VERSION}, or foundryup" in caught.value.fix


def test_anvil_version__is_that_of_the_checkout():
    assert json.loads((ROOT / "package.json").read_text())["devDependencies"]["@foundry-rs/anvil"] == ANVIL_VERSION


@pytest.mark.parametrize("place", ["lib/node_modules/@foundry-rs/anvil", "lib"], ids=["nested", "flat"])
def test_find_anvil__installed_globally_by_npm__is_the_native_program(tmp_path: Path, wheel: Path, place: str):
    wrapper = write_program(tmp_path / "lib/node_modules/@foundry-rs/anvil/bin.mjs")
    wheel.mkdir()
    (wheel / "anvil").symlink_to(wrapper)
    native = write_program(tmp_path / place / NATIVE)
    assert find_anvil() == native


def test_find_anvil__installed_by_foundryup__is_that_in_the_path(wheel: Path):
    program = write_program(wheel / "anvil")
    assert find_anvil() == program


def test_find_anvil__several__is_that_of_the_checkout(tmp_path: Path, wheel: Path):
    write_program(wheel / "anvil")
    native = write_program(tmp_path / "site-packages" / NATIVE)
    assert find_anvil() == native


def test_find_anvil__configured__is_taken_or_refused(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch):
    write_program(wheel / "anvil")
    monkeypatch.setenv("COVEY_ANVIL", str(tmp_path / "own"))
    with pytest.raises(OperatorError, match=r"no_anvil: .*/own in COVEY_ANVIL does not exist"):
        find_anvil()
    own = write_program(tmp_path / "own")
    assert find_anvil() == own
