"""The shipped recipes: each with the tiny model and rows of the same layout, for a step or as a dry run.

What a machine decides is replaced: the model, the questions, numbers of samples and lengths. Everything else is the
recipe's own, and so are the numbers that its comments take from others.
"""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import covey
from covey import cli
from covey.local.plan import find_shipped
from covey.model.tiny import tiny_folder
from covey.standalone.config import TrainConfig
from covey.standalone.preparation import prepare
from covey.standalone.reward_file import load_reward
from covey.standalone.run import run
from covey.tasks.examples import build_rows

pytestmark = pytest.mark.integration
RECIPES = find_shipped("recipes")
NAMES = ["countdown", "gsm8k", "intellect2", "reverse-text"]
TINY = {
    "model.path": str(tiny_folder()), "device": "cpu", "steps": 1, "model.dtype": "float32", "model.seq_len": 256,
    "sampling.group_size": 2, "sampling.groups_per_step": 2, "sampling.prompt_format": "raw",
    "sampling.max_prompt_tokens": 248, "sampling.max_completion_tokens": 8, "eval.prompts": 2,
}  # fmt: skip


def write_rows(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a context of 4,096 tokens. It has no weights for positions."""
    folder = tmp_path_factory.mktemp("model") / "wide"
    shutil.copytree(tiny_folder(), folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"max_position_embeddings": 4096}))
    return folder


def load(name: str, home: Path, **values: object) -> TrainConfig:
    return TrainConfig.load(RECIPES / f"{name}.toml", {**TINY, "home": str(home), **values}, {})


def read(name: str) -> TrainConfig:
    return TrainConfig.load(RECIPES / f"{name}.toml", {}, {})


def test_recipes__folder__has_these_and_each_says_its_target_and_what_was_run():
    assert sorted(path.stem for path in RECIPES.glob("*.toml")) == NAMES
    for name in NAMES:
        comment = " ".join(
            line.removeprefix("# ") for line in (RECIPES / f"{name}.toml").read_text().splitlines() if line[:1] == "#"
        )
        assert f"covey train configs/recipes/{name}.toml" in comment
        for part in ("published", "Run by this project", "Not run by this project"):
            assert part in comment, (name, part)


@pytest.mark.parametrize("name", NAMES)
def test_recipes__each_setting__is_one_that_the_run_uses(name: str):
    """A setting that is misspelled is refused; one that has no effect beside another would be found here."""
    document = tomllib.loads((RECIPES / f"{name}.toml").read_text())
    config = read(name).model_dump(mode="json")
    for section, value in document.items():
        for key, each in (value if isinstance(value, dict) else {}).items():
            expected = str(RECIPES / each) if (section, key) == ("data", "reward") else each
            assert config[section][key] == expected, (section, key)


@pytest.mark.parametrize(
    ("name", "model", "group", "groups", "rate", "warmup", "steps"),
    [
        ("reverse-text", "PrimeIntellect/Qwen3-0.6B-Reverse-Text-SFT", 16, 8, 3e-6, 0, 20),
        ("gsm8k", "Qwen/Qwen2.5-1.5B-Instruct", 8, 16, 1e-6, 5, 200),
        ("countdown", "Qwen/Qwen3-1.7B-Base", 8, 25, 1e-5, 5, 500),
        ("intellect2", "Qwen/QwQ-32B", 16, 256, 3e-7, 25, 200),
    ],
)
def test_recipes__numbers__are_those_of_their_sources(name, model, group, groups, rate, warmup, steps):
    config = read(name)
    assert (config.model.path, config.steps) == (model, steps)
    assert (config.sampling.group_size, config.sampling.groups_per_step) == (group, groups)
    assert (config.optim.learning_rate, config.optim.warmup_steps) == (rate, warmup)
    assert config.sampling.temperature == 1.0


def test_reverse_text__tiny_model__trains_on_rows_of_the_layout(tmp_path: Path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"A cup of tea, number {n}"} for n in range(16)])
    config = load("reverse-text", tmp_path / "run", **{"data.dataset": rows})
    plan = prepare(config)
    run(plan)
    (update,) = covey.LocalRun(config.home).metrics
    assert update["batch/samples"] == 4
    assert sorted(covey.LocalRun(config.home).evaluations) == [0, 1]
    (line, *_) = covey.LocalRun(config.home).rollouts(0)
    assert line.question.startswith("<bos>Reverse the text character-by-character.")
    reward = load_reward(RECIPES / "reverse_text.py:reward")
    row = {"prompt": "abcd"}
    assert reward("<reversed_text>\ndcba\n</reversed_text>", row) == 1.0
    assert reward("So: <reversed_text>dcxx</reversed_text>", row) == 0.5  # 2 of 4 + 4 characters, twice
    assert reward("dcba", row) == 0.0


def test_gsm8k__tiny_model__trains_on_rows_of_the_layout_with_two_scores(tmp_path: Path):
    layout = [{"question": f"Ann has {n} pens and gets 2 more. How many?", "answer": f"{n} + 2 = <<{n}+2={n + 2}>>"
               f"{n + 2}\n#### {n + 2}"} for n in range(40)]  # fmt: skip
    rows = write_rows(tmp_path / "rows.jsonl", layout)
    config = load("gsm8k", tmp_path / "run", **{"data.dataset": rows})
    plan = prepare(config)
    assert (plan.params.environment.kind, plan.config.eval.every) == ("math", 20)
    prompt = plan.load_environment().prompt(0)
    number = int(prompt.text.split()[2])
    assert prompt.text.endswith("put your final answer within \\boxed{}.")
    assert prompt.verification == {"ground_truth": [str(number + 2)]}
    run(plan)
    lines = [json.loads(line) for line in (config.home / "metrics.jsonl").read_text().splitlines()]
    scores = [(line["step"], line["reward"], line["lenient_reward"]) for line in lines if line["event"] == "evaluation"]
    assert [step for step, *_ in scores] == [0, 1]
    assert all(0 <= strict <= lenient <= 1 for _, strict, lenient in scores)


@pytest.mark.full
def test_countdown__tiny_model__trains_adapters_on_generated_questions(tmp_path: Path, wide: Path):
    lengths = {"model.seq_len": 1024, "sampling.max_prompt_tokens": 1000}
    config = load("countdown", tmp_path / "run", **{"model.path": str(wide), "lora.rank": 2, **lengths})
    plan = prepare(config)
    run(plan)
    assert covey.LocalRun(config.home).metrics[0]["batch/samples"] == 4
    prompt = plan.load_environment().prompt(0)
    assert prompt.text.endswith("between <answer> and </answer>.")
    environment = plan.load_environment()
    answer = environment.source.find_answer(environment.source.draw(0))
    drawn = environment.build_prompt(environment.source.draw(0))
    replies = [f"So <answer>{answer}</answer>", f"So {answer}"]
    graded = [environment.grade(drawn.build_reply(text, finished=True, tokens=9)).reward for text in replies]
    assert graded == [1.0, 0.0]
    assert plan.config.lora.rank == 2
    assert plan.params.model.prompt_format == "raw"


def test_intellect2__dry_run__is_the_papers_run(tmp_path: Path, wide: Path):
    kinds = ("verifiable_math", "verifiable_code")
    rows = write_rows(tmp_path / "rows.jsonl", [row for row in build_rows(240) if row["task_type"] in kinds])
    settings = {**TINY, "model.path": wide, "data.dataset": rows, "model.seq_len": 2048}
    settings["sampling.max_prompt_tokens"] = 2040
    arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    named = [str(RECIPES / "intellect2.toml"), "--out", str(tmp_path / "run")]
    shown = CliRunner().invoke(cli.app, ["train", *named, "--dry-run", *arguments])
    assert shown.exception is None, shown.output
    params = json.loads(shown.stdout[shown.stdout.index("{") :])
    parts = params["environment"]["options"]["parts"]
    assert len({part["options"]["dataset"] for part in parts}) == 1
    assert [(part["kind"], part["weight"]) for part in parts] == [("math", 4), ("code", 1)]
    assert [part["options"]["targets"] for part in parts] == [[1000, 2000, 3000, 4000]] * 2
    assert (params["max_staleness"], params["online_filter"]) == (2, True)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    config = read("intellect2")
    assert config.sampling.group_size * config.sampling.groups_per_step // config.optim.updates_per_step == 512
    assert (config.loss.delta, config.loss.beta, config.loss.old_policy) == (4.0, 0.001, "recompute")
    longest = (config.sampling.max_prompt_tokens or 0) + (config.sampling.max_completion_tokens or 0)
    assert longest == config.model.seq_len == 32768
