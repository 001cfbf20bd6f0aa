"""Runs are read in bounded parts, again when a file changes, and whatever their files contain."""

import json
import os
from pathlib import Path

import pytest

from covey.errors import ProtocolError
from covey.standalone.run_lock import hold_run
from covey.ui import run_reader
from covey.ui.run_folders import RunFolders
from covey.ui.run_reader import RunReader
from tests.fakes.run_folders import HOSTILE, write_completions, write_metrics

pytestmark = pytest.mark.unit


def make_reader(root: Path) -> RunReader:
    return RunReader(RunFolders(root), clock=lambda: 0.0)


def test_list_runs__process_that_trains__is_seen_by_its_lock(tmp_path: Path):
    write_metrics(tmp_path / "a", 3)
    reader = make_reader(tmp_path)
    before = reader.compute_version()
    with hold_run(tmp_path / "a"):
        assert [run.state for run in reader.list_runs()[0]] == ["running"]
        assert reader.compute_version() != before
    (run,), _ = reader.list_runs()
    assert (run.state, run.steps, run.reward, run.score, run.score_step) == ("stopped", 3, 0.2, 0.5, 3)
    assert reader.compute_version() == before


def test_read_run__new_line__is_read_and_changes_the_version(tmp_path: Path):
    write_metrics(tmp_path / "a", 2)
    reader = make_reader(tmp_path)
    seen, charts = reader.compute_version(["a"]), reader.read_run("a").charts
    assert [row[0] for row in charts[0].rows] == ["0", "1"]
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"event": "update", "step": 2, "reward/task": 0.75}\n{"event": "upd')
    assert reader.read_run("a").charts[0].rows[-1] == ["2", "0.75", "", ""]
    assert reader.read_run("a").problems == []  # a line that is being written is not damaged
    assert reader.compute_version(["a"]) != seen


def test_read_run__large_metrics__are_read_from_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_reader, "METRICS_BYTES", 1 << 20)
    write_metrics(tmp_path / "a", 4000)
    view = make_reader(tmp_path).read_run("a")
    assert view.problems[0] == "Only the newest 1 MiB of metrics.jsonl are shown."
    assert view.summary.steps == 4000
    assert 0 < int(view.charts[0].rows[0][0]) < 3999


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\n" * 9, b"[" * 100_000 + b"\n", b'{"event":"update","step":1,"reward/mean":1e999}\n']
)
@pytest.mark.parametrize("file", ["metrics.jsonl", "manifest.json", "rollouts/0.jsonl"])
def test_read_run__damaged_file__is_named_and_the_rest_is_shown(tmp_path: Path, file: str, content: bytes):
    write_metrics(tmp_path / "a", 2)
    write_completions(tmp_path / "a", 0, ["x"])
    (tmp_path / "a" / file).write_bytes(content)
    reader = make_reader(tmp_path)
    assert len(reader.list_runs()[0]) == 1
    view, page = reader.read_run("a"), reader.read_samples("a", 0)
    assert (len(view.charts) > 0) == (file != "metrics.jsonl")
    assert (len(page.samples), bool(page.problems)) == ((1, False) if file[0] != "r" else (0, content != b""))
    assert ("manifest.json is not a manifest of covey train." in view.problems) == (file == "manifest.json")
    reader.compare(["a"])


def test_read_run__manifest__is_its_configuration_and_names_the_tags(tmp_path: Path):
    write_metrics(tmp_path / "a", 2)
    write_completions(tmp_path / "a", 0, ["[t]deep[/t]7"])
    machine = {"commit": None, "python": "3", "packages": {}, "system": "s", "device": "cpu", "processes": 1}
    params = {"environment": {"options": {"thinking_tags": ["[t]", "[/t]"]}}}
    manifest = {"begun": "1970-01-01T00:00:10+00:00", "command": "c", "machine": machine, "data": [], "params": params}
    (tmp_path / "a" / "manifest.json").write_text(json.dumps(manifest | {"settings": {"steps": 2, "optim": {"lr": 1}}}))
    os.utime(tmp_path / "a" / "metrics.jsonl", (70, 70))
    reader = make_reader(tmp_path)
    view = reader.read_run("a")
    assert [table.title for table in view.settings] == ["Run", "Settings of covey train", "Parameters"]
    assert ("optim.lr", "1") in view.settings[1].rows
    assert (view.summary.state, view.summary.seconds) == ("finished", 60.0)
    assert reader.read_samples("a", None).samples[0].thinking == "[t]deep[/t]"


def test_read_samples__steps__lead_to_each_other(tmp_path: Path):
    write_metrics(tmp_path / "a", 9)
    for step in (1, 4, 8):
        write_completions(tmp_path / "a", step, HOSTILE)
    page = make_reader(tmp_path).read_samples("a", 4)
    assert (page.step, page.earlier, page.later, len(page.samples)) == (4, 1, 8, len(HOSTILE))
    assert make_reader(tmp_path).read_samples("a", None)[0] == 8
    with pytest.raises(ProtocolError, match=r"no completions of step 5\. Steps from 1 to 8 have some"):
        make_reader(tmp_path).read_samples("a", 5)


def test_read_samples__large_file__is_read_from_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_reader, "SAMPLES_BYTES", 1 << 20)
    write_metrics(tmp_path / "a", 1)
    write_completions(tmp_path / "a", 0, ["x" * 1000] * 1000)
    page = make_reader(tmp_path).read_samples("a", 0)
    assert page.problems == ["Only the first 1 MiB of 0.jsonl are shown."]
    assert 0 < len(page.samples) < 1000


def test_compare__names__are_one_to_eight_runs(tmp_path: Path):
    for name in "ab":
        write_metrics(tmp_path / name, 2)
    reader = make_reader(tmp_path)
    assert [row.name for row in reader.compare(["b", "a", "b"]).summaries] == ["b", "a"]
    for names, code in (([], "no_run"), (["c"], "no_run"), ([*"abcdefghi"], "too_many_runs")):
        with pytest.raises(ProtocolError) as raised:
            reader.compare(names)
        assert raised.value.code == code
