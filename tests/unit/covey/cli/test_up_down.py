"""What `covey up` prints about moved ports and errors of a detached keeper."""

import sys
from pathlib import Path

import pytest

from covey import cli
from covey.cli import up_down
from covey.errors import OperatorError
from covey.local import ports
from covey.local.folder import create_pool_folder
from covey.local.plan import PoolPlan
from tests.fakes.account import runner

pytestmark = pytest.mark.unit
ALREADY_UP = "covey: already_up: the processes of p are already running. Stop them with covey down p"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_pool_folder(tmp_path / "mine", PoolPlan(validators=1, port=7001))
    return tmp_path / "mine"


def test_up__other_ports__says_what_folders_of_workers_must_change(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ports, "listen", lambda host, port: type("Socket", (), {"close": lambda _: None})())
    monkeypatch.setattr(up_down, "keep_up", lambda folder, console: None)
    result = runner.invoke(cli.app, ["up", str(folder), "--port", "8040"])
    assert result.stdout == (
        f"{folder} uses the ports 8040 to 8044; in the folder of each worker that has joined, set the port of "
        "coordinator_url in worker*.toml to 8040, and that of rpc_url in deployment.json to 8043\n"
    )


def test_up__detached_and_it_ends_with_an_error__says_it_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The keeper's last line is in the log while its process still ends."""
    keeper = tmp_path / "keeper"
    keeper.write_text(f"#!/bin/sh\necho begins\necho {ALREADY_UP!r}\nsleep 0.5\nexit 1\n")
    keeper.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(keeper))
    result = runner.invoke(cli.app, ["up", str(folder), "--detach"])
    assert isinstance(result.exception, OperatorError)
    assert result.exception.code == "already_up"
    assert result.stdout == "begins\n"


@pytest.mark.parametrize("command", [["pool", "show"], ["pool", "pause"]])
def test_pool__before_its_first_up__names_covey_up(folder: Path, command: list[str]):
    result = runner.invoke(cli.app, [*command, str(folder)])
    assert isinstance(result.exception, OperatorError)
    assert result.exception.code == "no_deployment"
    assert result.exception.fix == f"Start the pool's devnet, which writes this file, with covey up {folder}"


@pytest.mark.parametrize("command", ["leave", "enroll"])
def test_worker__a_pools_folder__says_so(folder: Path, command: str):
    result = runner.invoke(cli.app, ["worker", command, str(folder)])
    assert isinstance(result.exception, OperatorError)
    assert result.exception.code == "no_workers"
    assert f"{folder} is a pool's folder: it runs " in result.exception.message
