"""The whole network by one command: how long it takes, what it learns, how fast a command answers.

`make bench NAME=demo` runs `covey demo` with its defaults; ARGS are passed on to it.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Measurement, report


def time_help(runs: int = 5) -> float:
    """Seconds of `covey --help`, the least of some runs."""
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "covey", "--help"], check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - started)
    return min(taken)


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "summary.json"
        code = subprocess.run(
            [sys.executable, "-m", "covey", "demo", "--json", str(file), *arguments], check=False
        ).returncode
        if not file.exists():  # the demo has said why
            return code
        summary = json.loads(file.read_text())
    reward, steps = summary["reward"], summary["steps"]
    report(
        "demo",
        [
            Measurement(name="demo_seconds", value=summary["seconds"], unit="s", n=1),
            Measurement(name="demo_steps", value=steps, unit="steps", n=1),
            Measurement(name="demo_reward_gain", value=sum(reward[-3:]) / 3 - reward[0], unit="reward", n=512),
            Measurement(name="demo_accepted", value=summary["accepted"], unit="submissions", n=1),
            Measurement(name="demo_slashed", value=len(summary["slashed"]), unit="cheats", n=1),
            Measurement(name="demo_honest_slashed", value=summary["honest_slashed"], unit="workers", n=1),
            Measurement(name="help_seconds", value=time_help(), unit="s", n=5),
        ],
    )
    return code
