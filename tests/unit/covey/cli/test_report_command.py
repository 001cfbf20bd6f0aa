"""`covey report` finds a run, a trainer's home and a pool, and writes what it finds."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey import cli
from covey.errors import OperatorError
from covey.standalone.config import TrainConfig
from covey.standalone.manifest import record_manifest
from covey.standalone.preparation import prepare
from tests.fakes.run_folders import write_completions, write_metrics

pytestmark = pytest.mark.unit
TRAINER = (
    'home = "trainer"\npool = 7\ndeployment = "d.json"\nkey_file = "keys/trainer.key"\norigin_root = "origin"\n'
    'rpc_url = "https://user:pw@node.example/v3/secretkey"\noptim.learning_rate = 2.5e-6\n'
)


def write_report(folder: Path, *options: str) -> str:
    out = folder / "out" / "report.html"
    done = CliRunner().invoke(cli.app, ["report", str(folder), "--out", str(out), *options])
    assert done.exception is None
    assert done.stdout == f"wrote {out}\n"
    return out.read_text()


def test_report__run__has_samples_of_two_steps_and_the_manifest(tmp_path: Path):
    write_metrics(tmp_path, 3)
    for step in range(3):
        write_completions(tmp_path, step, [f"answer {step}.{n}" for n in range(3)])
    config = TrainConfig.load(None, {"home": str(tmp_path), "device": "cpu", "seed": 1234567}, {})
    record_manifest(tmp_path, prepare(config).manifest, step=0, first_policy="0x" + "ab" * 32)
    page = write_report(tmp_path, "--samples", "2")
    assert page.index("answer 2.0") < page.index("answer 2.1") < page.index("answer 0.0")
    assert "answer 1." not in page
    assert "answer 0.2" not in page
    for text in ("1234567", "0x" + "ab" * 32, "optim.learning_rate", "packages.torch"):
        assert text in page
    assert "Completions" not in write_report(tmp_path, "--samples", "0").partition("Settings")[0].partition("Curves")[0]


@pytest.mark.parametrize("named", ["", "trainer"])
def test_report__pool_or_its_trainer__has_settings_and_terms_without_keys(tmp_path: Path, named: str):
    write_metrics(tmp_path / "trainer", 2)
    (tmp_path / "trainer.toml").write_text(TRAINER)
    (tmp_path / "pool.toml").write_text('name = "<b>pool</b>"\n[model]\nmax_completion_tokens = 4321\n')
    page = write_report(tmp_path / named)
    for text in ("2.5e-06", "model.max_completion_tokens", "4321", "&lt;b&gt;pool&lt;/b&gt;"):
        assert text in page
    assert "secretkey" not in page
    assert "trainer.key" not in page


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("manifest.json", b"{", "The settings cannot be shown: "),
        ("trainer.toml", b"x = ", "The settings cannot be shown: "),
        ("pool.toml", b"\xff", "is not valid TOML"),
        ("params.json", b'{"params": 7}', "Run "),
    ],
)
def test_report__damaged_files__are_named_and_the_rest_is_shown(tmp_path: Path, file: str, content: bytes, text: str):
    write_metrics(tmp_path, 2)
    (tmp_path / "trainer.toml").write_text(TRAINER)
    (tmp_path / file).write_bytes(content)
    page = write_report(tmp_path)
    assert text in page
    assert "figure" in page


def test_report__other_thinking_tags__fold_the_thinking(tmp_path: Path):
    write_metrics(tmp_path, 1)
    write_completions(tmp_path, 0, ["[t]deep[/t]7"])
    options = {"thinking_tags": ["[t]", "[/t]"]}
    (tmp_path / "params.json").write_text(json.dumps({"params": {"environment": {"options": options}}}))
    assert "Thinking, 11 characters" in write_report(tmp_path)


def test_report__folder_without_metrics__is_refused(tmp_path: Path):
    done = CliRunner().invoke(cli.app, ["report", str(tmp_path)])
    assert isinstance(done.exception, OperatorError)
    assert done.exception.code == "no_metrics"
