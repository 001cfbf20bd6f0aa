"""A pool's file of one's own, and commands run on it as a shell would.

Fixtures import what they use, because every process of unit tests imports this module.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from tests.fakes.account import FakeAccount

POOL = Path(__file__).resolve().parents[2] / "configs" / "pool.toml"
TOKEN = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """A copy of the shipped file."""
    return Path(shutil.copy(POOL, tmp_path / "pool.toml"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """`covey` with these arguments, in this process."""

    from covey import cli

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["covey", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as error:
            code = int(error.code or 0)
        return Answer(code, *capfd.readouterr())

    return run


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> "FakeAccount":
    """The account that every command opens."""
    from covey.console import options
    from covey.local import joining
    from tests.fakes.account import FakeAccount

    made = FakeAccount(1)
    monkeypatch.setattr(options, "open_account", lambda deployment, key_file, pool=0, *, folder=None: made)
    monkeypatch.setattr(joining, "is_devnet", lambda deployment: True)
    return made
