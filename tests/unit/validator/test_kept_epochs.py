"""Signed epochs in the validator's home: found by their headers, and the newest eight remain."""

from pathlib import Path

import pytest

from covey.protocol import canonical
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import ZERO_HASH
from validator.kept_epochs import KeptEpochs

pytestmark = pytest.mark.unit


def make_header(epoch: int, data: bytes) -> EpochHeader:
    return EpochHeader(
        pool=1, epoch=epoch, work_root=ZERO_HASH, reward_root=ZERO_HASH, leaf_count=1, units=1,
        data_hash=canonical.sha256(data), previous_hash=ZERO_HASH,
    )  # fmt: skip


def test_keep__ten_epochs__newest_eight_remain_with_their_signatures(tmp_path: Path):
    kept = KeptEpochs(tmp_path / "epochs")
    for epoch in range(10):
        kept.keep(make_header(epoch, b"file %d" % epoch), b"file %d" % epoch, f"0x{epoch}")
    assert kept.list_epochs() == [9, 8, 7, 6, 5, 4, 3, 2]
    assert len(list((tmp_path / "epochs").iterdir())) == 16
    assert (tmp_path / "epochs" / "9.signature").read_text() == "0x9"
    assert kept.find(make_header(9, b"file 9")) == b"file 9"
    assert kept.find(make_header(9, b"another")) is None
    assert kept.find(make_header(1, b"file 1")) is None
