"""`covey eval` on tiny models: tables, JSON, resuming, and what it refuses."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from covey.cli import eval_output
from covey.evaluation import evaluation_run
from covey.model.policy_files import save_policy
from covey.model.tiny import build_model, build_tokenizer, tiny_folder
from tests.fakes.spelling_rows import write_rows
from tests.unit.conftest import Answer, Command

pytestmark = pytest.mark.unit

OPTIONS = ("--engine", "hf", "--max-tokens", "8", "--samples", "2")


@pytest.fixture
def evaluate(tmp_path: Path, command: Command) -> Command:
    """Return a function that runs the command with rows that ask the shipped model for words."""
    write_rows(tmp_path / "rows.jsonl", 6)
    (tmp_path / "words.toml").write_text(
        f'[tasks]\nfile = "{tmp_path}/rows.jsonl"\noptions = {{ extraction = "whole" }}\n'
    )

    def run(*arguments: str, tasks: str = str(tmp_path / "words.toml")) -> Answer:
        return command("eval", *arguments, "--tasks", tasks, *OPTIONS, "--out", str(tmp_path / "out"))

    return run


def test_eval__two_models__prints_tables_and_writes_the_report(evaluate: Command, tmp_path: Path) -> None:
    save_policy(build_model(5), build_tokenizer(), tmp_path / "untrained", "bfloat16")
    code, out, err = evaluate(str(tiny_folder()), str(tmp_path / "untrained"))
    assert (code, err) == (
        0, "evaluating tiny: 0 of 24 completions\nevaluating untrained: 12 of 24 completions\n"
    )  # fmt: skip
    lines = out.splitlines()
    assert lines[0] == "6 questions, 2 completions each, temperature 0.6, at most 8 tokens, seed 0"
    assert lines[1].split()[:4] == ["model", "avg@2", "pass@2", "pass^2"]
    assert [line.split()[0] for line in lines[2:4]] == ["tiny", "untrained"]
    assert "untrained     tiny" in out
    assert lines[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    first, second = results["models"]
    assert (first["label"], second["label"]) == ("tiny", "untrained")
    assert first["mean"]["value"] > 0.2 > second["mean"]["value"] == 0.0
    (pair,) = results["comparisons"]
    assert pair["result"]["difference"]["value"] == pytest.approx(-first["mean"]["value"])
    assert results["settings"]["sampling"]["samples"] == 2
    page = (tmp_path / "out" / "report.html").read_text()
    assert "untrained - tiny" in page
    assert page.count("<details>") == 6 + 6 * 2 * 2


def test_eval__interrupted__says_so_and_goes_on_with_the_rest(
    evaluate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = evaluation_run.EvaluationRun._generate, []

    def generate(run: Any, keys: Any) -> Any:
        calls.append(len(keys))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(run, keys)

    monkeypatch.setattr(evaluation_run.EvaluationRun, "_generate", generate)
    code, out, err = evaluate(str(tiny_folder()), "--batch", "5", "--json")
    assert (code, out) == (130, "")
    assert err.startswith("stopped after 5 of 12 completions, which ")
    assert len((tmp_path / "out" / "samples.jsonl").read_text().splitlines()) == 5
    code, out, err = evaluate(str(tiny_folder()), "--batch", "5", "--json")
    assert (code, err, calls) == (0, "", [5, 5, 5, 2])
    shutil.rmtree(tmp_path / "out")
    assert evaluate(str(tiny_folder()), "--json").out == out


def test_eval__without_a_terminal__prints_a_line_now_and_then(
    evaluate: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_output, "LINE_SECONDS", 0.0)
    code, _, err = evaluate(str(tiny_folder()), "--batch", "4")
    assert code == 0
    begin, *lines = err.splitlines()
    assert begin == "evaluating tiny: 0 of 12 completions"
    assert [line.partition(",")[0] for line in lines] == [f"{n} of 12 completions" for n in (4, 8, 12)]
    assert lines[-1].endswith("about 0 s left")


def test_eval__other_settings_in_the_same_folder__are_refused(evaluate: Command, tmp_path: Path) -> None:
    assert evaluate(str(tiny_folder())).code == 0
    code, _, err = evaluate(str(tiny_folder()), "--seed", "3")
    assert (code, err.startswith("covey: another_evaluation: ")) == (1, True)
    assert "sampling.seed was 0 and is now 3" in err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".lock", "evaluation.json", "questions.jsonl", "samples.jsonl", "results.json", "report.html"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tasks", "options", "code"),
    [
        ("absent.jsonl", (), "no_source"),
        ("absent.toml", (), "no_settings_file"),
        ("no_such_generator", (), "bad_environment"),
        ("math", (), "bad_environment"),
        ("spell_backward", ("--since", "2024-01-01"), "bad_evaluation"),
        ("spell_backward", ("--temperature", "0"), "bad_evaluation"),
    ],
)
def test_eval__what_makes_no_sense__is_refused(
    evaluate: Command, tmp_path: Path, tasks: str, options: tuple[str, ...], code: str
) -> None:
    found, _, err = evaluate(str(tiny_folder()), *options, tasks=tasks)
    assert (found, err.split(": ")[:2]) == (1, ["covey", code])
    assert not (tmp_path / "out").exists()


def test_eval__a_run_without_policies__is_refused(evaluate: Command, tmp_path: Path) -> None:
    (tmp_path / "run" / "exports").mkdir(parents=True)
    code, _, err = evaluate(str(tmp_path / "run"))
    assert (code, err.startswith("covey: no_export: ")) == (1, True)


def test_eval__a_generator_by_name__asks_its_held_out_questions(evaluate: Command, tmp_path: Path) -> None:
    code, out, _ = evaluate(str(tiny_folder()), "--items", "3", "--json", tasks="spell_backward")
    assert code == 0
    assert json.loads(out)["questions"] == 3
    assert len((tmp_path / "out" / "questions.jsonl").read_text().splitlines()) == 3
