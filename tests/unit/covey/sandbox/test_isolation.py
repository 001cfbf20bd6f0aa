import sys
from pathlib import Path

import pytest

from covey.sandbox import Isolation, launcher
from covey.sandbox.isolation import SCRATCH, describe, list_readable, survey, wrap

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[4]


def test_survey__source_package__is_readable_without_its_neighbours():
    surroundings = survey(["covey"])
    assert ROOT / "covey" in surroundings.readable
    assert ROOT not in surroundings.readable
    assert Path(sys.prefix) in surroundings.readable
    assert str(ROOT) in surroundings.variables["PYTHONPATH"].split(":")
    assert "HOME" not in surroundings.variables


def test_describe__limits__shields_nothing():
    assert describe("limits").open_doors == ("network", "files", "processes", "environment")
    assert describe("bwrap", version="bubblewrap 0.11.0").open_doors == ()


def test_wrap__bubblewrap__has_every_namespace_and_only_scratch_is_writable(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    isolation = Isolation(level="bwrap", version="x", binary="/usr/bin/bwrap")
    line = wrap(isolation, ["run"], surroundings=survey(["covey"]), scratch=SCRATCH, scratch_bytes=77)
    assert line[0] == "/usr/bin/bwrap"
    assert {"--unshare-user", "--unshare-all", "--disable-userns", "--as-pid-1", "--new-session"} <= set(line)
    assert "--share-net" not in line
    assert not [part for part in line if part in {"--bind", "--dev-bind"}]
    assert line[line.index("--tmpfs") - 3 :][:5] == ["77", "--perms", "0700", "--tmpfs", "/scratch"]
    assert line[-2:] == ["--", "run"]


def test_wrap__root__becomes_another_user_first(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    isolation = Isolation(level="limits", version="x")
    line = wrap(isolation, ["run"], surroundings=survey([]), scratch=Path("/tmp/s"), scratch_bytes=1)
    assert line[:4] == [sys.executable, "-I", "-S", launcher.__file__]
    assert line[-1] == "run"


def test_list_readable__without_namespaces__has_no_proc():
    surroundings = survey(["covey"])
    assert Path("/proc") not in list_readable(Isolation(level="landlock", version="x"), surroundings)
    assert Path("/proc") in list_readable(Isolation(level="unshare", version="x"), surroundings)
    assert list_readable(Isolation(level="bwrap", version="x"), surroundings) == [Path("/")]


def test_find_covers__nested_closed_folders__finds_the_topmost_one(tmp_path: Path):
    for folder in (tmp_path, *(parent for parent in tmp_path.parents if "pytest" in str(parent))):
        folder.chmod(0o755)
    closed = tmp_path / "a" / "b"
    (closed / "c").mkdir(parents=True)
    (closed / "c").chmod(0o700)
    closed.chmod(0o750)
    assert launcher.find_covers([str(closed / "c" / "d"), str(tmp_path / "a" / "x")]) == [str(closed)]
    closed.chmod(0o751)
    assert launcher.find_covers([str(closed / "c" / "d")]) == [str(closed / "c")]
