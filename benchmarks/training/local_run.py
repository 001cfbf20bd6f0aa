"""`covey train` on one machine against TRL's `GRPOTrainer`: time to a held-out reward, speed and memory.

Each side is a fresh process with one thread, and the sides take turns. Model, questions, reward function, group, batch,
loss and optimizer are equal, and so is the size of evaluations. Covey's side is what the command runs, `prepare` and
`run`: it also writes a policy, a checkpoint, metrics and completions in every step, which TRL's side does not.

A side first runs without evaluations, and the steps after the first ones give the rates. Then it loads the model again
and runs with evaluations; their clock begins before the model is loaded. Imports do not count. Memory is the peak of
both runs.
"""

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import isolated_process
from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.training import spelling_task
from benchmarks.training.spelling_task import MAX_TOKENS, SpellingConfig, SpellingRun
from covey.protocol.ids import Step

OURS, TRL = "ours", "trl"
SIDES = {OURS: "benchmarks.training.local_run:learn", TRL: "benchmarks.training.local_run_peer:learn"}
"""Functions that run a side in a fresh process."""
CONFIG = SpellingConfig(rows=1024, steps=20, every=4, timed=8)
TARGET = 0.75
"""Mean held-out reward that counts as learned. The tiny model begins at about 0.34."""
WARM_UP = 2
"""First steps whose time does not count as speed."""
ROWS = isolated_process.LOGS / "local-run-rows.jsonl"
BARS = {"samples_per_cpu_s_ratio": Bar(least=2.0), "peak_memory_ratio": Bar(most=1.0)}

RunsBySide = dict[str, list[SpellingRun]]


def build_values(config: SpellingConfig, *, seed: int, home: str, is_timed: bool) -> dict[str, Any]:
    """Build the settings of Covey's side, as `--set` takes them."""
    return {
        "home": home,
        "seed": seed,
        "device": "cpu",
        "steps": config.timed if is_timed else config.steps,
        "sampling.group_size": config.siblings,
        "sampling.groups_per_step": config.groups,
        "sampling.temperature": 1.0,
        "sampling.prompt_format": "raw",
        "sampling.max_prompt_tokens": 64,
        "sampling.max_completion_tokens": MAX_TOKENS,
        "optim.learning_rate": config.learning_rate,
        "optim.warmup_steps": 0,
        "optim.max_grad_norm": 1.0,
        "eval.every": 0 if is_timed else config.every,
        "eval.prompts": config.held_out,
        "log_level": "warning",
    }


def learn(fields: dict[str, Any], rows_file: str, seed: int) -> SpellingRun:
    """Run both runs of a `SpellingConfig`, which is given by its fields."""
    from covey.standalone.config import TrainConfig
    from covey.standalone.preparation import ask_rows, prepare
    from covey.standalone.run import run as train

    config, run = SpellingConfig(**fields), SpellingRun()
    questions = ask_rows(spelling_task.read_rows(rows_file), spelling_task.compute_reward)

    def record(event: str, step: int, values: Any) -> None:
        if event == "evaluation":
            run.add_evaluation(Step(step), values["reward"])
        elif event == "update" and is_timed:
            run.stamp()

    for is_timed in (True, False):
        run.begin()
        with tempfile.TemporaryDirectory() as home:
            values = build_values(config, seed=seed, home=home, is_timed=is_timed)
            train(prepare(TrainConfig.load(None, values, {}), questions=questions), sinks=[record])
    return run.finish()


def measure(side: str, config: SpellingConfig, seed: int, rows: Path = ROWS) -> SpellingRun:
    """Run one side in a fresh process."""
    if not rows.exists():
        spelling_task.write_rows(rows, config.rows)
    fields = isolated_process.call(SIDES[side], config, str(rows), seed)
    return SpellingRun(**fields)


def compute_rate(config: SpellingConfig, run: SpellingRun, clock: int) -> float:
    """Compute the samples per second by wall (0) or CPU (1), without the first steps."""
    seconds = run.stamps[-1][clock] - run.stamps[WARM_UP - 1][clock]
    return config.batch * (len(run.stamps) - WARM_UP) / seconds


def find_reached(run: SpellingRun) -> tuple[float, float, float]:
    """Find steps, wall seconds and CPU seconds to the first evaluation of at least `TARGET`. Infinity without one."""
    reached = next(((float(step), wall, cpu) for step, reward, wall, cpu in run.evaluations if reward >= TARGET), None)
    return reached or (math.inf, math.inf, math.inf)


def build_measurements(config: SpellingConfig, runs: RunsBySide) -> list[Measurement]:
    """Build ratios, Covey's value by TRL's, of medians over the rounds, and the values themselves.

    A ratio of times is NaN if TRL's side has not reached the target.
    """
    n = len(runs[OURS])
    measurements = []

    def add(what: str, unit: str, values: dict[str, float]) -> None:
        ours, peer = values[OURS], values[TRL]
        shown = f"trl {peer:,.1f} {unit}"
        ratio = ours / peer if math.isfinite(peer) else math.nan
        measurements.append(Measurement(name=f"{what}_ratio", value=ratio, unit="ratio", n=n, peer=shown))
        measurements.append(Measurement(name=f"{what}.{OURS}", value=ours, unit=unit, n=n))

    def take(compute: Any) -> dict[str, float]:
        return {side: median(compute(run) for run in of_side) for side, of_side in runs.items()}

    add("samples_per_cpu_s", "samples/s", take(lambda run: compute_rate(config, run, 1)))
    add("samples_per_s", "samples/s", take(lambda run: compute_rate(config, run, 0)))
    add("peak_memory", "MB", take(lambda run: run.peak / 1e6))
    for index, what, unit in ((2, "cpu_s_to_reward", "s"), (1, "s_to_reward", "s"), (0, "steps_to_reward", "steps")):
        add(what, unit, take(lambda run, index=index: find_reached(run)[index]))
    add("first_reward", "reward", take(lambda run: run.evaluations[0][1]))
    add("last_reward", "reward", take(lambda run: run.evaluations[-1][1]))
    return set_bars(measurements, BARS)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("make bench NAME=local-run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side, one seed per round; default: 3")
    options = parser.parse_args(arguments)
    ROWS.unlink(missing_ok=True)
    runs: RunsBySide = {OURS: [], TRL: []}
    for seed in range(options.rounds):
        for side in (OURS, TRL) if seed % 2 else (TRL, OURS):  # no side is always the first
            run = measure(side, CONFIG, seed)
            runs[side].append(run)
            rewards = ", ".join(f"{step}: {reward:.2f}" for step, reward, *_ in run.evaluations)
            print(f"seed {seed}, {side}: {compute_rate(CONFIG, run, 1):,.0f} samples per CPU s; {rewards}", flush=True)
    measurements = build_measurements(CONFIG, runs)
    return finish("local-run", measurements, find_misses(measurements), arguments)
