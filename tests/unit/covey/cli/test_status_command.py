"""`covey status`: what it says of a folder and of a pool, and its exit status."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from covey import cli
from covey.cli import status_command
from covey.errors import TransientError
from covey.local.folder import PROCESSES_FILE, write_processes
from covey.local.folder_status import StatesFile
from covey.local.keeper import KeptProcess, locked
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol.api.overview import AlarmView, HourView, MoneyView, NodeCountsView, OverviewView, ReadinessSpread
from covey.protocol.api.trainer import TaskTypePoint
from tests.unit.coordinator.db.test_rate_queries import POINT

pytestmark = pytest.mark.unit
PAGES = "http://127.0.0.1:8004"
SHORT = AlarmView(code="escrow_short", text="The escrow lasts 1.5 days.", advice="Add tokens with covey pool fund.")


def make_overview(**changes: Any) -> OverviewView:
    values: dict[str, Any] = {
        "pool": 1,
        "name": "math [red]",
        "time": 1000,
        "block": 70,
        "step": 3,
        "ended": False,
        "paused_since": 400,
        "nodes": NodeCountsView(removed=0, suspended=1, dead=0, unhealthy=0, waiting=2, busy=5),
        "tasks": {"PENDING": 4},
        "submissions": {"ACCEPTED": 12, "SUBMITTED": 1},
        "reasons": {"proof": 2},
        "cases": {},
        "oldest_undecided_seconds": 90.0,
        "hour": HourView(submitted=9, accepted=8, rejected=1, void=0, units=100),
        "money": MoneyView(
            decimals=1, symbol="CVT", price=1, escrow=500, promised=20, spent_per_day=100, days_left=4.8
        ),
        "newest": None,
        "task_types": (),
        "readiness": None,
        "alarms": (SHORT,),
    }
    return OverviewView(**(values | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_processes(tmp_path / PROCESSES_FILE, {"trainer": "trainer run"})
    (tmp_path / "logs").mkdir()
    (tmp_path / "trainer.toml").write_text(
        'pool = 1\ndeployment = "d.json"\nkey_file = "k"\ncoordinator_url = "http://127.0.0.1:1"\n'
    )
    return tmp_path


def answer(monkeypatch: pytest.MonkeyPatch, overview: OverviewView) -> None:
    """Let a coordinator and its pages answer."""

    async def find_pages(_: CoordinatorClient) -> str:
        return PAGES

    async def get_overview(client: CoordinatorClient) -> OverviewView:
        assert client._base_url == PAGES
        return overview

    monkeypatch.setattr(CoordinatorClient, "find_pages", find_pages)
    monkeypatch.setattr(CoordinatorClient, "get_overview", get_overview)


def test_describe_pool__counts_and_money__are_ten_lines():
    shown = status_command._describe_pool(make_overview())
    assert shown == {
        "state": "paused for 10 minutes, step 3, block 70",
        "reward": "no step is trained yet",
        "nodes": "1 suspended, 2 waiting, 5 busy",
        "tasks": "4 pending",
        "submissions": "12 accepted, 1 submitted; the oldest one has waited 90 s for its verdict",
        "last hour": "9 submitted, 8 accepted, 1 rejected",
        "rejected for": "2 proof",
        "cases": "none",
        "escrow": "50 CVT, of which 2 CVT is promised",
        "lasts": "4.8 days",
    }


def test_describe_pool__trained_on_two_types__names_their_rewards_and_the_readiness():
    types = (
        TaskTypePoint(name="math", share=0.75, reward_mean=0.5),
        TaskTypePoint(name="gcd", share=0.25, reward_mean=0.25),
    )
    ready = ReadinessSpread(nodes=7, p50_seconds=12.4, p95_seconds=31.0)
    shown = status_command._describe_pool(make_overview(newest=POINT, task_types=types, readiness=ready))
    assert shown["reward"].endswith("120 tokens/s; math 0.500, gcd 0.250")
    assert shown["nodes"] == "1 suspended, 2 waiting, 5 busy; a policy takes 12 s, and 31 s at p95"


def test_status__running_folder__is_well_and_names_alarms_and_the_page(folder: Path, monkeypatch: pytest.MonkeyPatch):
    answer(monkeypatch, make_overview())
    running = SimpleNamespace(exit_code=None, pid=4711)
    monkeypatch.setattr(Console, "width", 120, raising=False)
    with locked(folder):
        StatesFile(folder).write([KeptProcess(name="trainer", command="trainer run", running=running)])
        result = CliRunner().invoke(cli.app, ["status", str(folder)])
    assert result.exit_code == 0, result.output
    for text in (
        "trainer",
        "runs",
        "4711",
        "math [red]",
        "alarm escrow_short: The escrow lasts 1.5 days. Add tokens",
        PAGES,
    ):
        assert text in result.output


def test_status__nothing_runs_and_nobody_answers__says_so_and_ends_with_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    async def fail(_: CoordinatorClient) -> str:
        raise TransientError("coordinator_unreachable", "gone")

    monkeypatch.setattr(CoordinatorClient, "find_pages", fail)
    result = CliRunner().invoke(cli.app, ["status", str(folder), "--json"])
    seen = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [each["state"] for each in seen["processes"]] == ["stopped"]
    assert (seen["keeper"], seen["pool"], "gone" in seen["problem"]) == (None, None, True)


def test_status__url__needs_no_folder(monkeypatch: pytest.MonkeyPatch):
    answer(monkeypatch, make_overview(money=make_overview().money.model_copy(update={"escrow": None})))
    result = CliRunner().invoke(cli.app, ["status", "http://127.0.0.1:8000", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["pool"]["alarms"] == [SHORT.model_dump()]
