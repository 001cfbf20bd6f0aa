"""The manifest of a run: it has what was chosen, it gives the same settings again, and it says what differs."""

import json
import subprocess
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from covey.errors import OperatorError
from covey.protocol.ids import Hash
from covey.standalone.config import TrainConfig
from covey.standalone.manifest import (
    RunManifest,
    describe_machine,
    find_differences,
    list_differences,
    list_values,
    read_manifest,
    record_manifest,
    require_same_data,
)
from covey.standalone.preparation import DATA_SET, ask_rows, prepare

pytestmark = pytest.mark.unit
POLICY = Hash("0x" + "11" * 32)
OTHER = Hash("0x" + "22" * 32)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> RunManifest:
    return build(tmp_path_factory.mktemp("run"), {"optim.betas": "0.8,0.9", "seed": 7})


def build(home: Path, values: dict[str, object]) -> RunManifest:
    return prepare(TrainConfig.load(None, {"home": str(home), "device": "cpu"} | values, {})).manifest


def test_build_manifest__settings_left_open__have_the_chosen_values(manifest: RunManifest):
    sampling, model = manifest.settings["sampling"], manifest.settings["model"]
    assert (sampling["engine"], sampling["max_prompt_tokens"], sampling["max_completion_tokens"]) == ("hf", 64, 8)
    assert (model["dtype"], model["seq_len"], model["micro_batch_size"]) == ("float32", 1024, 8)
    assert "home" not in manifest.settings
    assert sampling["node"].startswith("0x")
    assert {"covey", "torch", "transformers", "reasoning-gym"} <= manifest.machine.packages.keys()


def test_list_values__loaded_again__give_the_same_manifest(manifest: RunManifest, tmp_path: Path):
    values = list_values(RunManifest.model_validate_json(manifest.model_dump_json()), tmp_path / DATA_SET)
    again = build(tmp_path, values)
    assert again.settings == manifest.settings
    assert again.params == manifest.params
    assert list_differences(manifest, again) == []


def test_list_values__data_set__is_the_one_in_the_runs_folder(tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    row = {"verification_info": {"ground_truth": "4"}, "task_type": "math"}
    rows.write_text("".join(json.dumps(row | {"prompt": f"What is {n} + {n}?"}) + "\n" for n in range(64)))
    values = {"data.dataset": str(rows), "eval.every": 0, "sampling.max_completion_tokens": 16}
    manifest = build(tmp_path / "run", values)
    rows.unlink()
    again = build(tmp_path / "again", list_values(manifest, tmp_path / "run" / DATA_SET))
    assert again.data == manifest.data
    assert len(manifest.data) == 1
    require_same_data(manifest, again)
    with pytest.raises(OperatorError, match=r"data_changed: the data sets are none, and those"):
        require_same_data(manifest, manifest.model_copy(update={"data": ()}))


def test_list_values__rows_of_python__cannot_be_repeated(tmp_path: Path):
    rows = [{"prompt": f"{n}?"} for n in range(32)]
    config = TrainConfig.load(None, {"home": str(tmp_path), "device": "cpu", "sampling.max_completion_tokens": 8}, {})
    plan = prepare(config, questions=ask_rows(rows, lambda _text, _row: 1.0))
    with pytest.raises(OperatorError, match="cannot_repeat"):
        list_values(plan.manifest, tmp_path / DATA_SET)


def test_record_manifest__resumed_with_other_packages__keeps_begin_and_adds_the_change(
    manifest: RunManifest, tmp_path: Path
):
    record_manifest(tmp_path, manifest.model_copy(update={"begun": "then"}), step=0, first_policy=POLICY)
    record_manifest(tmp_path, manifest, step=4, first_policy=POLICY)
    assert read_manifest(tmp_path).changes == ()
    machine = manifest.machine.model_copy(update={"packages": manifest.machine.packages | {"torch": "9"}})
    settings = manifest.settings | {"steps": 5, "seed": 8}
    now = manifest.model_copy(update={"machine": machine, "settings": settings})
    with capture_logs() as logs:
        record_manifest(tmp_path, now, step=8, first_policy=POLICY)
    read = read_manifest(tmp_path / "manifest.json")
    assert (read.begun, read.settings["steps"], read.first_policy) == ("then", 5, POLICY)
    torch = manifest.machine.packages["torch"]
    assert read.changes == (
        f'step 8: packages.torch was "{torch}" and is "9"', "step 8: settings.seed was 7 and is 8"
    )  # fmt: skip
    assert tuple(line["change"] for line in logs) == read.changes


def test_find_differences__nested_values__have_their_paths():
    before, now = {"a": {"b": 1, "c": [1]}, "d": None}, {"a": {"b": 2, "c": [1]}, "e": "x"}
    assert find_differences(before, now) == ["a.b was 1 and is 2", 'e was null and is "x"']


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff", b'{"version": 2}'])
def test_read_manifest__not_a_manifest__is_refused(tmp_path: Path, content: bytes | None):
    file = tmp_path / "manifest.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(OperatorError, match="bad_manifest"):
        read_manifest(file)


def test_describe_machine__checkout_and_installation__have_and_lack_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("covey.__file__", str(tmp_path / "covey" / "__init__.py"))
    assert describe_machine("cpu").commit is None
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", str(tmp_path)]
    (tmp_path / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True, timeout=60)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True, timeout=60).stdout
    assert describe_machine("cpu").commit == head.strip()
    (tmp_path / "file").write_text("2")
    assert describe_machine("cpu").commit == f"{head.strip()}-dirty"
