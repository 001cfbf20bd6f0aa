import tempfile
from pathlib import Path

import pytest

from covey.runtime.state_folder import open_state_folder

pytestmark = pytest.mark.unit


def test_open_state_folder__places__are_created_for_this_user_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert open_state_folder() == tmp_path / "state" / "covey"
    assert open_state_folder().stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert open_state_folder() == tmp_path / "home" / ".local" / "state" / "covey"


def test_open_state_folder__no_home__is_in_the_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = open_state_folder()
    assert (folder.parent, folder.name[:6]) == (tmp_path, "covey-")
    assert folder.stat().st_mode & 0o777 == 0o700
