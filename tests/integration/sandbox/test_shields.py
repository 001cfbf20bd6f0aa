"""What a call can reach on this machine, at every isolation level: exactly what the level does not shield."""

import os
import signal
import socket
from pathlib import Path

import pytest

from covey.sandbox import Isolation, Sandbox
from tests.integration.sandbox.conftest import Build, is_alive

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]


def require_shield(isolation: Isolation, name: str) -> None:
    if not getattr(isolation, name):
        pytest.skip(f"{isolation.level} does not shield: {name}")


def test_network__listener_of_this_machine__sees_nothing(sandbox: Sandbox, isolation):
    require_shield(isolation, "network")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        assert sandbox.call(b"connect %d" % listener.getsockname()[1]) != b"connected"
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_files__of_this_machine__cannot_be_read(sandbox: Sandbox, isolation, tmp_path: Path):
    require_shield(isolation, "files")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for folder in (tmp_path, *(parent for parent in tmp_path.parents if "pytest" in str(parent))):
        folder.chmod(0o755)
    hidden = [secret, Path("/etc/shadow"), Path("/etc/passwd"), Path("/etc/hostname"), ROOT / "pyproject.toml"]
    hidden += [ROOT / "worker" / "app.py", Path.home() / ".bashrc", Path.home() / ".ssh" / "id_ed25519"]
    for path in hidden:
        assert sandbox.call(b"open " + bytes(path)).startswith(b"!"), path
    assert b"secret" not in sandbox.call(b"list " + bytes(tmp_path))


def test_files__outside_scratch__cannot_be_written(sandbox: Sandbox, isolation):
    require_shield(isolation, "files")
    assert sandbox.call(b"write inside") == b"written"
    for path in ("/x", "/dev/x", "/dev/shm/x", "/usr/x", f"{ROOT}/covey/x", "/var/tmp/x"):
        assert sandbox.call(b"write " + path.encode()).startswith(b"!"), path


def test_files__every_folder_of_bubblewraps_root__is_read_only(sandbox: Sandbox, isolation):
    if not isolation.has_own_root:
        pytest.skip("the level has no root folder of its own")
    assert sandbox.call(b"write_somewhere") in (b"/scratch", b"/scratch\n/tmp")
    assert not {b"docs", b"README.md"} & {*sandbox.call(b"list " + bytes(ROOT)).split()}


def test_environment__of_process_1_and_of_the_parent__holds_no_secret(build: Build, isolation, monkeypatch):
    require_shield(isolation, "environment")
    monkeypatch.setenv("COVEY_SECRET", "s3cret")
    sandbox = build(isolation=isolation.level)
    assert b"SECRET" not in sandbox.call(b"environment")
    for process in (1, os.getpid(), os.getppid()):
        for name in ("environ", "cmdline", "mem"):
            said = sandbox.call(b"open /proc/%d/%s" % (process, name.encode()))
            assert b"s3cret" not in said
            assert said.startswith(b"!") or name == "cmdline", (process, name, said)


def test_environment__names__are_the_few_that_python_needs(sandbox: Sandbox):
    names = sandbox.call(b"environment").decode()
    assert "PYTHONHASHSEED" in names
    assert not [name for name in ("COVEY", "PYTEST", "SSH", "USER", "AWS") if name in names]


def test_zygote__cannot_be_read_or_traced(sandbox: Sandbox, isolation):
    if isolation.level == "limits" and os.geteuid() == 0:
        pytest.skip("the user that has no rights is tested on the other levels")
    assert sandbox.call(b"spy") == b""
    assert sandbox.call(b"trace_zygote").startswith(b"!")


def test_zygote__cannot_be_ended_or_starved(sandbox: Sandbox, isolation):
    require_shield(isolation, "processes")
    sandbox.call(b"echo warm")
    zygote = sandbox.process_ids
    assert sandbox.call(b"kill_zygote") == b"tried"
    assert sandbox.call(b"starve_zygote").startswith(b"!")
    sandbox.run(b"kill_all")
    assert sandbox.call(b"echo next") == b"next"
    assert sandbox.process_ids == zygote


def test_zygote__ended_from_inside__is_started_again(build: Build):
    """At the level that does not shield processes."""
    sandbox = build(isolation="limits")
    error = sandbox.run(b"kill_zygote").error
    assert error is None or error.code == "sandbox_died"
    assert sandbox.call(b"echo next") == b"next"


def test_parent__cannot_be_signalled(sandbox: Sandbox, isolation):
    require_shield(isolation, "processes")
    victim = os.fork()
    if victim == 0:
        signal.pause()
        os._exit(0)
    try:
        assert sandbox.call(b"kill %d" % victim).startswith(b"!")
        assert is_alive(victim)
    finally:
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)


@pytest.mark.parametrize("word", [b"unshare", b"keep_memory"])
def test_kernel__namespaces_and_lasting_memory__are_refused(sandbox: Sandbox, isolation, word: bytes):
    if isolation.level == "limits":
        pytest.skip("the level has no filter of system calls")
    assert sandbox.call(word).startswith(b"!")


def test_descriptors__of_the_parent__are_not_open(sandbox: Sandbox, tmp_path: Path):
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        assert sandbox.call(b"descriptors") == b"1"  # the answer


def test_subprocess__of_a_grader__runs(sandbox: Sandbox):
    assert sandbox.call(b"subprocess") == b"42"
