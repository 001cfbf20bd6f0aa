"""A worker keeps one name per home, however often it is started."""

import re
import stat
from pathlib import Path

import pytest

from covey.errors import OperatorError
from worker.instance import load_instance

pytestmark = pytest.mark.unit


def test_load_instance__new_home__is_random_kept_and_readable_by_its_owner_only(tmp_path: Path):
    homes = [tmp_path / name for name in ("a", "b")]
    for home in homes:
        home.mkdir()
    names = [load_instance(home) for home in homes]
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)
    assert len(set(names)) == 2
    assert [load_instance(home) for home in homes] == names
    assert stat.S_IMODE((homes[0] / "instance").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"no name", b"\xff" * 32, b"0" * 33])
def test_load_instance__file_without_an_instance__says_what_to_do(tmp_path: Path, content: bytes):
    (tmp_path / "instance").write_bytes(content)
    with pytest.raises(OperatorError, match=r"bad_instance: .*Remove .*instance"):
        load_instance(tmp_path)
