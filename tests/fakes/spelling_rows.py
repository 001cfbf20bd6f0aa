"""Rows whose questions the shipped tiny model was trained on, and an evaluation of it on them."""

import json
import os
import signal
from pathlib import Path

from covey.environments.registry import DEMO, load
from covey.evaluation.evaluate import EvaluationObserver, evaluate
from covey.evaluation.evaluated_policies import find_policies
from covey.evaluation.evaluation_config import EvaluationConfig, read_config
from covey.evaluation.evaluation_scores import EvaluationResults
from covey.model.tiny import tiny_folder

QUIET = EvaluationObserver(begin=lambda total, done: None, name=lambda label: None, advance=lambda count: None)


def write_rows(path: Path, count: int) -> list[tuple[str, str]]:
    """Write rows of type short_answer, and return their questions with the right answers."""
    environment = load(DEMO)
    questions = [environment.prompt(number).text for number in range(count)]
    pairs = [(question, question.rsplit(": ", 1)[1][::-1]) for question in questions]
    rows = [
        {
            "problem_id": f"word-{number}",
            "task_type": "short_answer",
            "prompt": question,
            "verification_info": {"answers": [answer]},
            "level": len(answer),
        }
        for number, (question, answer) in enumerate(pairs)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return pairs


def build_config(rows: Path, **sampling: object) -> EvaluationConfig:
    """Return the settings of an evaluation of the tiny model, with `batch` as one of `sampling`."""
    batch = sampling.pop("batch", 16)
    return read_config(
        None,
        {
            "tasks": {"file": rows, "options": {"extraction": "whole"}},
            "sampling": {"max_tokens": 8, **sampling},
            "engine": {"name": "hf", "batch": batch},
        },
    )


def evaluate_tiny(rows: Path, out: Path, **sampling: object) -> EvaluationResults:
    """Evaluate the shipped tiny model."""
    return evaluate(find_policies([str(tiny_folder())], None), build_config(rows, **sampling), out, QUIET)


def evaluate_until(rows: Path, out: Path, turns: int) -> None:
    """Evaluate in this process until a number of turns are written, and then kill the process.

    `turns` counts from 0: the process dies before it asks anything.
    """
    written = 0

    def count(_: int) -> None:
        nonlocal written
        written += 1
        if written == turns:
            os.kill(os.getpid(), signal.SIGKILL)

    def begin(total: int, done: int) -> None:
        if turns == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    observer = EvaluationObserver(begin=begin, name=lambda label: None, advance=count)
    evaluate(find_policies([str(tiny_folder())], None), build_config(rows, samples=4), out, observer)
