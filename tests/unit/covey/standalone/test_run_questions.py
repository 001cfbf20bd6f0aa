"""The held-out questions of a run are asked as the run asks them."""

import json
from pathlib import Path

import pytest

from covey.environments.base import EnvironmentSpec
from covey.environments.registry import load
from covey.errors import OperatorError
from covey.protocol.ids import Hash
from covey.standalone.config import TrainConfig
from covey.standalone.manifest import record_manifest
from covey.standalone.preparation import ask_rows, prepare
from covey.standalone.run_questions import ask_as_run
from covey.tasks.catalog import DataSetCatalog

pytestmark = pytest.mark.unit
VALUES = {"device": "cpu", "sampling.max_completion_tokens": 12, "sampling.temperature": 0.8, "eval.prompts": 5}


def begin(home: Path, values: dict[str, object]) -> None:
    plan = prepare(TrainConfig.load(None, {"home": str(home)} | VALUES | values, {}))
    record_manifest(home, plan.manifest, step=0, first_policy=Hash("0x" + "11" * 32))


def test_ask_as_run__rows_of_gsm8k__are_the_runs_with_its_lengths(tmp_path: Path):
    rows, home = tmp_path / "rows.jsonl", tmp_path / "run"
    lines = [{"question": f"What is {n} + {n}?", "answer": f"<<{n}+{n}={2 * n}>>\n#### {2 * n}"} for n in range(64)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    begin(home, {"data.dataset": str(rows), "data.environment": "math", "eval.samples": 3})
    rows.unlink()
    config, folders = ask_as_run(str(home), {"sampling": {"temperature": None, "seed": 4}})
    assert config.tasks.kind == "math"
    with DataSetCatalog(folders) as data_sets:
        environment = load(EnvironmentSpec(kind=config.tasks.kind, options=config.tasks.options), data_sets)
        prompt = environment.held_out(1)[0]
        right = 2 * int(prompt.text.split()[2])
        rewards = [
            environment.grade(prompt.build_reply(rf"\boxed{{{answer}}}", finished=True, tokens=9)).reward
            for answer in (right, right + 1)
        ]
        assert rewards == [1.0, 0.0]
    assert (config.tasks.items, config.sampling.samples, config.sampling.max_tokens) == (5, 3, 12)
    assert (config.sampling.temperature, config.sampling.seed) == (0.8, 4)
    assert (config.prompt.format, config.engine.dtype) == ("raw", "float32")
    policy = home / "exports" / "0"
    policy.mkdir(parents=True)
    assert ask_as_run(str(policy), {"tasks": {"items": 2}})[0].tasks.items == 2


def test_ask_as_run__no_run__is_refused(tmp_path: Path):
    with pytest.raises(OperatorError, match="bad_evaluation: there are no questions, because --tasks is missing"):
        ask_as_run(str(tmp_path), {})


def test_ask_as_run__function_of_python__is_refused(tmp_path: Path):
    rows = [{"prompt": f"{n}?"} for n in range(32)]
    config = TrainConfig.load(None, {"home": str(tmp_path)} | VALUES, {})
    plan = prepare(config, questions=ask_rows(rows, lambda _text, _row: 1.0))
    record_manifest(tmp_path, plan.manifest, step=0, first_policy=Hash("0x" + "11" * 32))
    with pytest.raises(OperatorError, match="bad_evaluation: a Python function graded the run"):
        ask_as_run(str(tmp_path), {})
