"""Runs on one machine from Python: rows, a reward function, and what can be read from the run's folder."""

import asyncio
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import covey
from covey import cli
from covey.errors import OperatorError
from covey.standalone.generator import Generator
from trainer.checkpoints.checkpoint import Checkpoints

pytestmark = pytest.mark.integration
WORDS = ["abc", "sun", "net", "dog", "cat", "pen", "cup", "map", "red", "hat", "toy", "van", "ice", "jam", "key", "log"]
ROWS = [{"prompt": f"Spell this word backward (example: sun -> nus): {word}", "word": word} for word in WORDS]
QUICK = {
    "optim": {"learning_rate": 5e-4, "warmup_steps": 0}, "device": "cpu",
    "sampling": {"max_prompt_tokens": 64, "max_completion_tokens": 8, "groups_per_step": 4},
}  # fmt: skip


def reward(completion: str, row) -> float:
    return float(completion.strip() == row["word"][::-1])


def timed(completion: str, row) -> float:
    """Grade with a limit in seconds, as math-verify does. It raises ValueError outside the main thread."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(60)
    try:
        return reward(completion, row)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> covey.LocalRun:
    return covey.train(dataset=ROWS, reward=reward, steps=2, out=tmp_path_factory.mktemp("run") / "run", **QUICK)


def test_train__rows_and_function__leaves_policy_metrics_and_rollouts(run: covey.LocalRun):
    assert run.policy == run.folder / "exports" / "2"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in run.policy.iterdir()}
    assert [line["step"] for line in run.metrics] == [0, 1]
    assert sorted(run.evaluations) == [0, 2]
    lines = run.rollouts(1)
    assert len(lines) == 8
    for line in lines:
        word = re.findall(r": (\w+)\n", line.question)[0]
        assert line.reward == float(line.completion.strip() == word[::-1])


def test_train__again__resumes_and_other_settings_are_refused(run: covey.LocalRun, tmp_path: Path):
    folder = shutil.copytree(run.folder, tmp_path / "run")
    before = (folder / "beacons.jsonl").read_text()
    again = covey.train(dataset=ROWS, reward=reward, steps=3, out=folder, **QUICK)
    assert (again.folder / "beacons.jsonl").read_text().startswith(before)
    assert [line["step"] for line in again.metrics] == [0, 1, 2]
    with pytest.raises(OperatorError, match=r"another_run: .*params.group_size was 8 and is 4"):
        covey.train(
            dataset=ROWS, reward=reward, out=folder, **(QUICK | {"sampling": QUICK["sampling"] | {"group_size": 4}})
        )


def test_train__in_a_running_event_loop__works_as_in_a_notebook(tmp_path: Path):
    async def cell() -> covey.LocalRun:
        return covey.train(dataset=ROWS, reward=timed, steps=1, out=tmp_path / "run", eval={"every": 0}, **QUICK)

    assert len(asyncio.run(cell()).metrics) == 1


def test_train__function_uses_signals__works_and_torch_keeps_its_settings(tmp_path: Path):
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(False)
    try:
        run = covey.train(dataset=ROWS, reward=timed, steps=1, out=tmp_path / "run", **QUICK)
        assert sorted(run.evaluations) == [0, 1]
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


def test_train__interrupted__says_so_and_stops_after_the_step(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    def interrupt(completion: str, row) -> float:
        if not (tmp_path / "interrupted").exists():
            (tmp_path / "interrupted").touch()
            os.kill(os.getpid(), signal.SIGINT)
        return reward(completion, row)

    run = covey.train(dataset=ROWS, reward=interrupt, steps=9, out=tmp_path / "run", eval={"every": 0}, **QUICK)
    assert len(run.metrics) == 1
    error = capfd.readouterr().err
    assert error.count("the run stops after the current step; another Ctrl-C stops it at once") == 1
    assert "training stopped, the same command continues" in error


def test_train__reward_of_a_file__grades_as_in_python(tmp_path: Path, run: covey.LocalRun):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    code = "def score(completion, row):\n    return float(completion.strip() == row['word'][::-1])\n"
    (tmp_path / "reward.py").write_text(code)
    arguments = ["--reward", f"{tmp_path}/reward.py:score", "--dataset", str(tmp_path / "rows.jsonl"), "--steps", "2"]
    sampling = [f"sampling.{name}={value}" for name, value in QUICK["sampling"].items()]
    values = [*sampling, "optim.learning_rate=5e-4", "optim.warmup_steps=0", "device=cpu"]
    sets = [part for value in values for part in ("--set", value)]
    done = CliRunner().invoke(cli.app, ["train", "--out", str(tmp_path / "run"), *arguments, *sets])
    assert done.exception is None
    assert (tmp_path / "run" / "beacons.jsonl").read_text() == (run.folder / "beacons.jsonl").read_text()


def test_train__function_does_not_end__ends_the_run_with_its_row(tmp_path: Path):
    with pytest.raises(OperatorError, match=r"slow_reward: .*more than 0.1 s .* of the row with the prompt 'Spell"):
        covey.train(
            dataset=ROWS, reward=lambda _text, _row: time.sleep(60), data={"reward_seconds": 0.1}, steps=1,
            out=tmp_path / "run", eval={"every": 0}, **QUICK,
        )  # fmt: skip


def test_train__function_raises__its_error_ends_the_run(tmp_path: Path):
    with pytest.raises(KeyError, match="nothing"):
        covey.train(dataset=ROWS, reward=lambda _text, row: row["nothing"], steps=1, out=tmp_path / "run", **QUICK)


@pytest.mark.parametrize(
    "arguments", [{"dataset": ROWS}, {"reward": reward}, {"dataset": "rows.jsonl", "reward": reward}]
)
def test_train__rows_without_function_or_the_reverse__is_refused(tmp_path: Path, arguments):
    with pytest.raises(OperatorError, match="bad_rows"):
        covey.train(out=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_train__nothing_is_learned__stops_with_advice(tmp_path: Path):
    with pytest.raises(OperatorError) as caught:
        covey.train(
            dataset=ROWS, reward=lambda _text, _row: 1.0, steps=9, out=tmp_path / "run", stop_when_dead=2,
            alarms={"steps": 2}, eval={"every": 0}, **QUICK,
        )  # fmt: skip
    assert caught.value.code == "dead_run"
    assert "no group has rewards that differ" in caught.value.message
    assert len(covey.LocalRun(tmp_path / "run").metrics) == 2


@pytest.mark.parametrize("staleness", [0, 1])
def test_train__checkpoint_is_being_written__next_batch_that_needs_its_policy_is_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staleness: int
):
    prepare, generate, has_begun, seen = Checkpoints.prepare, Generator.generate, threading.Event(), list[bool]()

    def write_late(self: Checkpoints, learner: Any, step: int, report: Any) -> Callable[[], None]:
        write = prepare(self, learner, step, report)

        def wait() -> None:
            if step == 1:
                seen.append(has_begun.wait(20))
            write()

        return wait

    def note(self: Generator, step: int) -> Any:
        if step - staleness == 1:  # sampled by policy 1
            has_begun.set()
        return generate(self, step)

    monkeypatch.setattr(Checkpoints, "prepare", write_late)
    monkeypatch.setattr(Generator, "generate", note)
    settings = QUICK | {"sampling": QUICK["sampling"] | {"max_staleness": staleness}}
    covey.train(dataset=ROWS, reward=reward, steps=3, out=tmp_path / "run", eval={"every": 0}, **settings)
    assert seen == [True]


def test_local_run__empty_folder__has_no_policy_and_no_metrics(tmp_path: Path):
    run = covey.LocalRun(tmp_path)
    assert (run.metrics, run.evaluations) == ([], {})
    with pytest.raises(OperatorError, match="no_policy"):
        _ = run.policy


def test_rollouts_show__run__prints_questions_completions_and_rewards(run: covey.LocalRun):
    shown = CliRunner().invoke(cli.app, ["rollouts", "show", str(run.folder), "--step", "1", "--count", "2"])
    assert shown.exception is None
    assert shown.stdout.count("-- step 1, policy 1, task ") == 2
    assert "Spell this word backward" in shown.stdout
    listed = CliRunner().invoke(cli.app, ["rollouts", "show", str(run.folder), "--step", "1", "--json"])
    assert [line["step"] for line in json.loads(listed.stdout)["rollouts"]] == [1] * 8


def test_rollouts_show__completion_with_control_characters__shows_none(tmp_path: Path, run: covey.LocalRun):
    file = tmp_path / "rollouts" / "0.jsonl"
    file.parent.mkdir()
    line = json.loads((run.folder / "rollouts" / "1.jsonl").read_text().splitlines()[0])
    file.write_text(json.dumps(line | {"completion": "<think>\x1b[2Jhidden</think>\u202e[bold]7[/bold]"}) + "\n")
    shown = CliRunner().invoke(cli.app, ["rollouts", "show", str(tmp_path)])
    assert "<think>?[2Jhidden</think>?[bold]7[/bold]" in shown.stdout


def test_rollouts_show__folder_without_rollouts__is_refused(tmp_path: Path):
    shown = CliRunner().invoke(cli.app, ["rollouts", "show", str(tmp_path)])
    assert isinstance(shown.exception, OperatorError)
    assert shown.exception.code == "no_rollouts"


@pytest.mark.full
def test_train__repeated_from_its_manifest__has_the_same_policies(tmp_path: Path):
    first, again = tmp_path / "first", tmp_path / "again"
    values = ("optim.learning_rate=5e-4", "sampling.groups_per_step=4", "eval.every=0", "device=cpu", "seed=3")
    sets = [part for value in values for part in ("--set", value)]
    begun = CliRunner().invoke(cli.app, ["train", "--out", str(first), "--steps", "2", *sets])
    assert begun.exception is None
    manifest = json.loads((first / "manifest.json").read_text())
    other = manifest | {"machine": manifest["machine"] | {"python": "3.9.1"}, "first_policy": "0x" + "11" * 32}
    (tmp_path / "other.json").write_text(json.dumps(other))
    repeated = CliRunner().invoke(cli.app, ["train", "--repeat", str(tmp_path / "other.json"), "--out", str(again)])
    assert repeated.exception is None
    assert 'differs from the repeated run: python was "3.9.1" and is "' in repeated.stderr
    assert "the model differs from that of the repeated run" in repeated.stderr
    beacons = [(folder / "beacons.jsonl").read_text() for folder in (first, again)]
    assert beacons[0].count("\n") == 3
    assert beacons[1] == beacons[0]
    asked = CliRunner().invoke(cli.app, ["eval", str(first), "--items", "8", "--json", "--out", str(tmp_path / "eval")])
    assert asked.exception is None
    scores = json.loads(asked.stdout)
    assert (scores["questions"], scores["models"][0]["label"]) == (8, "first step 2")


@pytest.mark.parametrize("arguments", [[], ["settings.toml", "--out", "again"]])
def test_train__repeat_without_a_new_folder_or_with_a_file__is_refused(arguments: list[str]):
    refused = CliRunner().invoke(cli.app, ["train", "--repeat", "manifest.json", *arguments])
    assert isinstance(refused.exception, OperatorError)
    assert refused.exception.code == "bad_repeat"
