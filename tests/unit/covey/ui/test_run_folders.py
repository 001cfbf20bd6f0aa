"""Runs are found by their files, and nothing outside the folder is read."""

import os
import socket
from pathlib import Path

import pytest

from covey.errors import OperatorError
from covey.ui import run_folders
from covey.ui.run_folders import RunFolders
from tests.fakes.run_folders import write_completions, write_metrics

pytestmark = pytest.mark.unit
METRICS = "metrics.jsonl"


def make_run(root: Path, name: str, *, at: int = 0) -> Path:
    write_metrics(root / name, 1)
    os.utime(root / name / METRICS, (at, at))
    return root / name


def test_list_runs__folders__are_those_with_files_of_runs_newest_first(tmp_path: Path):
    for at, name in enumerate(("old", "<b>&amp;", "new")):
        make_run(tmp_path, name, at=at)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".run.lock").touch()
    os.utime(tmp_path / "begun" / ".run.lock", (9, 9))
    assert RunFolders(tmp_path).list_runs() == (["begun", "new", "<b>&amp;", "old"], [])


def test_list_runs__links_and_strange_names__are_counted_and_left_out(tmp_path: Path):
    root, other = tmp_path / "runs", tmp_path / "other"
    make_run(root, "own")
    make_run(other, "foreign")
    (root / "link").symlink_to(other / "foreign")
    (root / "disguised").mkdir()
    (root / "disguised" / METRICS).symlink_to(other / "foreign" / METRICS)
    os.mkdir(os.fsencode(root) + b"/\xff")
    Path(os.fsdecode(os.fsencode(root) + b"/\xff"), METRICS).touch()
    names, problems = RunFolders(root).list_runs()
    assert names == ["own"]
    assert problems == ["Symbolic links, which are not followed: 1.", "Folders whose names are not UTF-8: 1."]


def test_list_runs__too_many__are_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_folders, "MAX_RUNS", 2)
    for at in range(4):
        make_run(tmp_path, f"run-{at}", at=at)
    assert RunFolders(tmp_path).list_runs() == (["run-3", "run-2"], ["Older runs that are not listed: 2."])


def test_run_folders__folder_that_is_a_run__is_the_only_one(tmp_path: Path):
    folders = RunFolders(make_run(tmp_path, "alone"))
    make_run(tmp_path, "neighbor")
    assert folders.list_runs().names == ["alone"]
    assert folders.read_end("alone", METRICS, most=1 << 20).is_whole
    assert not folders.is_run("neighbor")


def test_run_folders__missing_folder__is_refused(tmp_path: Path):
    with pytest.raises(OperatorError, match="is not a folder") as raised:
        RunFolders(tmp_path / "missing")
    assert raised.value.code == "no_runs_folder"


@pytest.mark.parametrize("name", ["", ".", "..", "../other", "a/b", "a\0b", "missing", "\udcff"])
def test_open_file__name_of_no_run__is_not_found(tmp_path: Path, name: str):
    make_run(tmp_path / "runs", "a")
    make_run(tmp_path, "other")
    make_run(tmp_path / "runs" / "a", "b")
    folders = RunFolders(tmp_path / "runs")
    assert not folders.is_run(name)
    with pytest.raises(FileNotFoundError), folders.open_file(name, METRICS):
        raise AssertionError


def test_open_file__links_pipes_sockets_and_folders__are_refused_at_once(tmp_path: Path):
    run, secret = make_run(tmp_path / "runs", "a"), make_run(tmp_path, "secret")
    (run / "link").symlink_to(secret / METRICS)
    (run / "rollouts").symlink_to(secret)
    (run / "folder").mkdir()
    os.mkfifo(run / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(run / "socket"))
    folders = RunFolders(tmp_path / "runs")
    for parts in (("link",), ("rollouts", METRICS), ("folder",), ("pipe",), ("socket",)):
        assert folders.read_stamp("a", *parts) is None, parts
        with pytest.raises(OSError), folders.open_file("a", *parts):  # noqa: PT011
            raise AssertionError
    assert folders.list_sample_steps("a") == []


def test_read__large_file_and_line_that_is_written__are_whole_lines_of_a_part(tmp_path: Path):
    run = make_run(tmp_path, "a")
    (run / "log").write_bytes(b"one\ntwo\nthree\nfo")
    folders = RunFolders(tmp_path)
    assert (folders.read_start("a", "log", most=9).data, folders.read_end("a", "log", most=9).data) == (
        b"one\ntwo\n",
        b"three\n",
    )
    assert not folders.read_start("a", "log", most=9).is_whole
    whole = folders.read_end("a", "log", most=16)
    assert (whole.data, whole.is_whole) == (b"one\ntwo\nthree\n", True)
    assert folders.read_whole("a", "log", most=16).data.endswith(b"fo")
    with pytest.raises(OSError, match="larger than 15 bytes"):
        folders.read_whole("a", "log", most=15)


def test_list_sample_steps__names__are_canonical_numbers(tmp_path: Path):
    run = make_run(tmp_path, "a")
    for step in (10, 9):
        write_completions(run, step, ["x"])
    for name in ("01.jsonl", "x.jsonl", "7.json", "\u0663.jsonl", "12345678901.jsonl"):
        (run / "rollouts" / name).touch()
    assert RunFolders(tmp_path).list_sample_steps("a") == [9, 10]
