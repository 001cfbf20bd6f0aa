import os
from pathlib import Path

import pytest

from covey.sandbox.scratch import empty

pytestmark = pytest.mark.unit


def test_empty__files_links_pipes_and_closed_folders__removes_them_but_not_link_targets(tmp_path: Path):
    target, folder = tmp_path / "target", tmp_path / "scratch"
    (folder / "a" / "b" / "c").mkdir(parents=True)
    target.mkdir()
    (target / "kept").touch()
    (folder / "link").symlink_to(target)
    (folder / "a" / "link").symlink_to("/")
    (folder / "moved-0").touch()
    os.mkfifo(folder / "a" / "pipe")
    (folder / "a" / "b").chmod(0)
    folder.chmod(0o500)
    assert empty(folder)
    assert os.listdir(folder) == []
    assert (target / "kept").exists()


def test_empty__more_entries_than_the_limit__returns_false(tmp_path: Path):
    for number in range(6):
        (tmp_path / str(number)).touch()
    assert not empty(tmp_path, max_entries=5)
    assert empty(tmp_path, max_entries=5)
