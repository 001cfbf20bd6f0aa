"""The folder of an evaluation: torn lines, other settings, two processes, and a full disk."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from covey.errors import OperatorError
from covey.evaluation import sample_log
from covey.evaluation.sample_log import SampleLog, SampleRecord

pytestmark = pytest.mark.unit

RECORD = SampleRecord(model=0, question=1, sample=2, tokens=3, finished=True, answered=True, score=1.0, confidence=0.5)
IDENTITY = {"models": ["a"], "sampling": {"seed": 0, "samples": 4}}
TEXT = "line\nend \u2028 \ud800 \x00 end"


@contextmanager
def open_log(folder: Path, identity: Any = IDENTITY) -> Iterator[SampleLog]:
    with SampleLog(folder) as log:
        log.open(identity, {"machine": "this"})
        yield log


def test_log__opened_again__has_all_records_and_texts(tmp_path: Path) -> None:
    other = replace(RECORD, sample=3, limit="sandbox_cpu", confidence=None)
    with open_log(tmp_path / "out") as log:
        log.append([(RECORD, TEXT)])
        log.append([(other, "")])
        before = dict(log.records)
    with open_log(tmp_path / "out") as log:
        assert log.records == before == {RECORD.key: RECORD, other.key: other}
        assert [log.read_text(key) for key in (RECORD.key, other.key)] == [TEXT, ""]
        assert log.list_missing([(0, 1, 2), (0, 1, 3), (0, 2, 0)]) == [(0, 2, 0)]


def test_log__torn_last_line__is_dropped_and_written_again(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append([(RECORD, TEXT), (replace(RECORD, sample=3), "x")])
    path = tmp_path / "samples.jsonl"
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) - 20):
        path.write_bytes(whole[:size])
        with open_log(tmp_path) as log:
            assert list(log.records) == [RECORD.key]
            log.append([(replace(RECORD, sample=3), "x")])
            assert log.read_text((0, 1, 3)) == "x"
        assert path.read_bytes() == whole


def test_log__of_another_evaluation__names_what_differs(tmp_path: Path) -> None:
    with open_log(tmp_path):
        pass
    other = IDENTITY | {"sampling": {"seed": 1, "samples": 4}}
    message = r"another_evaluation: .*: sampling.seed was 0 and is now 1"
    with pytest.raises(OperatorError, match=message), open_log(tmp_path, other):
        pass
    other |= {"models": ["a", "b"]}
    message = r"models.1 \(and 1 others\) was null and is now \"b\""
    with pytest.raises(OperatorError, match=message), open_log(tmp_path, other):
        pass
    with open_log(tmp_path):
        pass


@pytest.mark.parametrize("name", ["evaluation.json", "samples.jsonl"])
def test_log__damaged_files__are_refused(tmp_path: Path, name: str) -> None:
    with open_log(tmp_path):
        pass
    (tmp_path / name).write_text('{"model": 0}\n')
    with pytest.raises(OperatorError, match=f"bad_results: .*{name}"), open_log(tmp_path):
        pass


def test_log__samples_without_a_manifest__are_not_used(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append([(RECORD, TEXT)])
    (tmp_path / "evaluation.json").unlink()
    with open_log(tmp_path) as log:
        assert log.records == {}


def test_log__open_in_another_process__is_refused(tmp_path: Path) -> None:
    with (
        open_log(tmp_path),
        pytest.raises(OperatorError, match="evaluation_running: another process evaluates"),
    ):
        SampleLog(tmp_path)
    with open_log(tmp_path):
        pass


def test_log__folder_that_cannot_be_made__is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match="no_folder"):
        SampleLog(tmp_path / "file" / "out")


def test_log__full_disk__says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_log(tmp_path) as log:
        monkeypatch.setattr(sample_log, "append", fail)
        with pytest.raises(OperatorError, match=r"disk_full: .*run the same command again"):
            log.append([(RECORD, TEXT)])
        assert log.records == {}
