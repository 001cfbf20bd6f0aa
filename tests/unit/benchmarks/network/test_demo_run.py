"""What the benchmark of the demo reads from its summary."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from benchmarks.network import demo_run
from benchmarks.network.demo_run import build_measurements, main

pytestmark = pytest.mark.unit

SUMMARY = {
    "seconds": 90.5,
    "steps": 4,
    "reward": [0.25, 0.5, 0.75, 1.0],
    "accepted": 16,
    "slashed": ["0x1", "0x2"],
    "honest_slashed": 0,
}


def test_build_measurements__summary__gain_is_the_mean_of_the_last_three_steps_over_step_0() -> None:
    values = {each.name: each.value for each in build_measurements(SUMMARY, 0.3)}
    assert values == {
        "demo_seconds": 90.5,
        "demo_steps": 4,
        "demo_reward_gain": 0.5,
        "demo_accepted": 16,
        "demo_slashed": 2,
        "demo_honest_slashed": 0,
        "help_seconds": 0.3,
    }


@pytest.mark.parametrize("has_summary", [True, False])
def test_main__exit_code_of_the_demo__is_returned_and_a_summary_is_recorded(
    has_summary: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command[2:])
        if has_summary and "--json" in command:
            Path(command[command.index("--json") + 1]).write_text(demo_run.json.dumps(SUMMARY))
        return subprocess.CompletedProcess(command, 3 if "demo" in command else 0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_run.subprocess, "run", run)
    assert main(["--steps", "4"]) == 3
    assert commands[0][:3] == ["covey", "demo", "--json"]
    assert commands[0][-2:] == ["--steps", "4"]
    path = Path("build/bench/demo.json")
    assert path.exists() is has_summary
    if has_summary:
        assert commands[1:] == [["covey", "--help"]] * demo_run.HELP_RUNS
        assert results.read(path)[1]["demo"].command == 'make bench NAME=demo ARGS="--steps 4"'
