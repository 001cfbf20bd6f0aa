"""The whole network of `covey demo`: its duration, what the policy learns, and the latency of a command.

ARGS of `make bench NAME=demo` are options of `covey demo`, which runs with its defaults otherwise.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import finish
from benchmarks.measurement import Measurement

HELP_RUNS = 5
"""Runs of `covey --help`, of which the fastest counts."""


def time_help(runs: int) -> float:
    """Measure the seconds of the fastest of some runs of `covey --help`."""
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "covey", "--help"], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "summary.json"
        command = [sys.executable, "-m", "covey", "demo", "--json", str(file), *arguments]
        code = subprocess.run(command, check=False).returncode
        if not file.exists():  # the demo has printed the reason
            return code
        summary = json.loads(file.read_text())
    finish("demo", build_measurements(summary, time_help(HELP_RUNS)), [], arguments)
    return code


def build_measurements(summary: dict[str, Any], help_seconds: float) -> list[Measurement]:
    """Build the measurements from the demo's summary.

    The gain in reward is the mean of the last three steps less that of step 0, held out, at temperature 1.
    """
    reward = summary["reward"]
    gain = sum(reward[-3:]) / 3 - reward[0]
    return [
        Measurement(name="demo_seconds", value=summary["seconds"], unit="s", n=1),
        Measurement(name="demo_steps", value=summary["steps"], unit="steps", n=1),
        Measurement(name="demo_reward_gain", value=gain, unit="reward", n=512),
        Measurement(name="demo_accepted", value=summary["accepted"], unit="submissions", n=1),
        Measurement(name="demo_slashed", value=len(summary["slashed"]), unit="cheats", n=1),
        Measurement(name="demo_honest_slashed", value=summary["honest_slashed"], unit="workers", n=1),
        Measurement(name="help_seconds", value=help_seconds, unit="s", n=HELP_RUNS),
    ]
