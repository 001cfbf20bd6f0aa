"""The broker in a folder: each message comes once and whole, wherever temporary files are."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import Empty

import pytest
from kombu import Connection
from structlog.testing import capture_logs

from coordinator.queue import folder_broker
from coordinator.queue.folder_broker import SCHEME, FolderChannel

pytestmark = pytest.mark.unit


@pytest.fixture
def channels(tmp_path: Path) -> Iterator[list[FolderChannel]]:
    """Two consumers of one folder."""
    folder_broker.register()
    options = {"data_folder_in": str(tmp_path), "data_folder_out": str(tmp_path), "control_folder": str(tmp_path / "c")}
    with closing(Connection(f"{SCHEME}://", transport_options=options)) as connection:
        yield [connection.channel(), connection.channel()]


def test_get__two_consumers__take_each_message_once_and_without_a_copy(
    channels: list[FolderChannel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On another disk a copy of the first consumer is overwritten, while it reads, by that of the second one."""
    monkeypatch.delattr(shutil, "move")
    first, second = channels
    for number in range(3):
        first._put("now", {"number": number})
    first._put("bulk", {"number": 7})
    assert sorted(channel._get("now")["number"] for channel in (first, second, first)) == [0, 1, 2]
    with pytest.raises(Empty):
        second._get("now")
    assert second._get("bulk") == {"number": 7}
    assert list(tmp_path.glob("*.*")) == []


def test_get__another_consumer_was_faster__takes_the_next_message(
    channels: list[FolderChannel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    channels[0]._put("now", {"number": 7})
    (message,) = tmp_path.glob("*.msg")
    names = ["0_gone.now.msg", message.name]
    monkeypatch.setattr(folder_broker.os, "listdir", lambda _: names)
    assert channels[1]._get("now") == {"number": 7}


def test_get__message_that_a_power_cut_emptied__is_dropped_and_logged(channels: list[FolderChannel], tmp_path: Path):
    (tmp_path / "0_empty.now.msg").write_bytes(b"")
    channels[0]._put("now", {"number": 7})
    with capture_logs() as logs:
        assert channels[1]._get("now") == {"number": 7}
    assert [line["event"] for line in logs] == ["a message cannot be read"]
