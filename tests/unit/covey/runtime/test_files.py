import os
import resource
from pathlib import Path

import pytest

from covey.runtime.files import append, read_lines, write_atomically

pytestmark = pytest.mark.unit

STEPS = ["open", "fsync", "replace"]


class CrashError(BaseException):
    """A power failure, which no handler may catch."""


def test_write__new_and_old__whole_content_and_no_draft(tmp_path):
    path = tmp_path / "a.json"
    for data in (b"first", b"", b"x" * 100_000):
        write_atomically(path, data)
        assert path.read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_write__order__file_synced_before_the_rename_and_folder_after_it(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (calls.append(Path(f"/proc/self/fd/{fd}").resolve().is_dir()), fsync(fd))
    )
    monkeypatch.setattr(Path, "replace", lambda self, to: (calls.append("rename"), replace(self, to))[1])
    write_atomically(tmp_path / "a", b"1")
    assert calls == [False, "rename", True]


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("step", STEPS)
def test_write__crash_at_each_step__old_or_new_never_half(tmp_path, monkeypatch, step, old):
    path = tmp_path / "a"
    if old is not None:
        path.write_bytes(old)

    def crash(*_, **__):
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(os if step == "fsync" else Path, step, crash)
        with pytest.raises(CrashError):
            write_atomically(path, b"new")
    assert (path.read_bytes() if path.exists() else None) in (old, b"new")
    assert {path.name for path in tmp_path.iterdir()} <= {"a"}


def test_write__crash_after_the_rename__new(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    calls = []

    def crash_second(_):
        calls.append(1)
        if len(calls) == 2:
            raise CrashError

    monkeypatch.setattr(os, "fsync", crash_second)
    with pytest.raises(CrashError):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_write__no_folder__raises_and_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "nowhere" / "a", b"x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("torn", [b"", b'{"a', b"\xff"])
def test_read_lines__incomplete_last_line__is_removed_from_the_file(tmp_path, torn):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n22\n" + torn)
    assert read_lines(path) == [b"1", b"22"]
    assert path.read_bytes() == b"1\n22\n"


def test_read_lines__no_complete_line__is_empty(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"12")
    assert (read_lines(path), path.read_bytes()) == ([], b"")


@pytest.mark.parametrize("room", [0, 1, 5])
def test_append__disk_is_full__adds_nothing_and_succeeds_once_there_is_room(tmp_path, room):
    path = tmp_path / "a.jsonl"
    append(path, b"1\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 + room, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            append(path, b"123456\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"1\n"
    append(path, b"123456\n")
    assert path.read_bytes() == b"1\n123456\n"
