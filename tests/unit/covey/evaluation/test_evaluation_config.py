"""Settings of an evaluation: files, options that override them, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from covey.errors import OperatorError
from covey.evaluation.evaluation_config import EvaluationConfig, read_config

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[4]
GUIDE = ROOT / "docs" / "guides" / "evaluate.md"
CONFIGS = sorted((ROOT / "configs" / "evaluations").glob("*.toml"))


def build(**tables: dict[str, Any]) -> EvaluationConfig:
    return read_config(None, {"tasks": {"kind": "math"}} | tables)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda path: path.name)
def test_config__shipped__loads(file: Path) -> None:
    config = read_config(file, {})
    assert config.tasks.file or config.tasks.kind
    assert config.sampling.max_tokens >= 8
    assert "docs/guides/evaluate.md" in file.read_text()


def test_config__of_every_benchmark__is_shipped() -> None:
    names = {file.stem for file in CONFIGS}
    assert {"gsm8k", "math500", "aime2024", "livecodebench", "mmlu", "hle"} <= names
    assert read_config(CONFIGS[0].with_name("aime2024.toml"), {}).sampling.samples == 32


def test_guide__names_every_setting() -> None:
    text = GUIDE.read_text()
    for table, field in EvaluationConfig.model_fields.items():
        for name in field.annotation.model_fields:  # type: ignore[union-attr]
            assert f"`{name}`" in text or f"`{table}.{name}`" in text, name


def test_read_config__options__override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[tasks]\nfile = "rows.jsonl"\nitems = 7\n[sampling]\nsamples = 4\ntop_p = 1.0\n')
    config = read_config(file, {"sampling": {"samples": 2, "seed": 9}, "engine": {"batch": 3}})
    assert (config.tasks.file, config.tasks.items) == (Path("rows.jsonl"), 7)
    assert (config.sampling.samples, config.sampling.seed, config.engine.batch) == (2, 9, 3)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"tasks": {}}, "exactly one of file and kind"),
        ({"tasks": {"file": "x", "kind": "math"}}, "exactly one of file and kind"),
        ({"tasks": {"kind": "math", "since": "2024-01-01"}}, "are for rows of a file"),
        ({"tasks": {"file": "x", "format": "gsm9k"}}, "tasks.format"),
        ({"sampling": {"temperature": 0.001}}, "temperature must be 0 or at least 0.01"),
        ({"sampling": {"temperature": 0, "samples": 2}}, "samples must be 1 at temperature 0"),
        ({"sampling": {"sample": 2}}, "did you mean samples"),
        ({"tables": {}}, "unknown name"),
    ],
)
def test_read_config__what_makes_no_sense__is_refused(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(OperatorError, match=words) as caught:
        build(**tables)
    assert caught.value.code == "bad_evaluation"


@pytest.mark.parametrize(("name", "value"), [("top_p", 0.95), ("top_k", 20), ("repetition_penalty", 1.1)])
def test_read_config__what_the_sampler_cannot_do__is_refused(name: str, value: float) -> None:
    with pytest.raises(OperatorError, match=f"unsupported_sampling: {name} is {value}"):
        build(sampling={name: value})


def test_read_config__no_such_file__is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[tasks")
    (tmp_path / "flat.toml").write_text('sampling = 3\n[tasks]\nkind = "math"\n')
    with pytest.raises(OperatorError, match=r"bad_evaluation: invalid settings .*: sampling: "):
        read_config(tmp_path / "flat.toml", {"sampling": {"samples": 2}})
    for name, code in (("none.toml", "no_settings_file"), ("bad.toml", "bad_settings")):
        with pytest.raises(OperatorError, match=f"{code}: the settings file"):
            read_config(tmp_path / name, {})


def test_choose_device__auto__is_the_one_that_torch_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.evaluation.evaluation_config.find_device", lambda: "cuda")
    chosen = build().choose_device().engine
    assert (chosen.device, chosen.compute_dtype) == ("cuda", "bfloat16")
    assert build(engine={"device": "cpu"}).choose_device().engine.device == "cpu"


def test_compute_dtype__by_default__depends_on_the_device() -> None:
    assert [build(engine={"device": device}).engine.compute_dtype for device in ("cpu", "cuda:1")] == [
        "float32",
        "bfloat16",
    ]
    assert build(engine={"dtype": "bfloat16"}).engine.compute_dtype == "bfloat16"
