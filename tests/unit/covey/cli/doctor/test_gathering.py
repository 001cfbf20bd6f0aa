"""How the doctor waits, and what it reports of this machine."""

import threading
from types import SimpleNamespace

import pytest

from coordinator.config import CoordinatorConfig
from covey.cli.doctor import gathering, machine_facts
from covey.cli.doctor.doctor import guess_role
from covey.cli.doctor.gathering import find_coordinator_url, gather, start
from covey.cli.doctor.snapshot import Trouble
from covey.errors import OperatorError, TransientError
from covey.sandbox import LEVELS
from worker.config import WorkerConfig

pytestmark = pytest.mark.unit
HANG_S = 60.0
"""Deadline against hanging, in seconds. Whatever this machine answers comes sooner."""


def fail(error):
    raise error


def test_start__answers_while_others_do__each_is_waited_for_until_its_own_deadline(monkeypatch):
    """Once the deadlines have passed, all waits end at once. One that started afresh would take ten minutes."""
    never, now = threading.Event(), [0.0]
    monkeypatch.setattr(gathering, "time", SimpleNamespace(monotonic=lambda: now[0]))
    try:
        waits = [start(600, f"thing {i}", never.wait) for i in range(3)]
        assert start(HANG_S, "the number", lambda: 7)() == 7
        now[0] = 600.0
        for i, wait in enumerate(waits):
            assert wait() == Trouble(detail=f"thing {i} did not answer within 600 s", fix="Run covey doctor again")
    finally:
        never.set()


@pytest.mark.parametrize(
    ("error", "detail", "fix"),
    [
        (OperatorError("no_key", "k cannot be read", fix="Name a file"), "k cannot be read", "Name a file"),
        (TransientError("away", "http://a.b did not answer. Start it"), "http://a.b did not answer", "Start it"),
        (OverflowError("too large"), "the response of the node is malformed: OverflowError: too large", ""),
        (TypeError("int() of None"), "the response of the node is malformed: TypeError: int() of None", ""),
    ],
)
def test_start__error__becomes_what_happened_and_what_to_do(error, detail, fix):
    assert start(HANG_S, "the node", lambda: fail(error))() == Trouble(detail=detail, fix=fix)


def test_gather__nothing_is_there__everything_is_trouble_or_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_facts, "_GPUS", tmp_path)
    monkeypatch.setattr(machine_facts, "DEVICE_SECONDS", HANG_S)
    for name in ("DEVICE_SECONDS", "ISOLATION_SECONDS", "HTTP_SECONDS"):
        monkeypatch.setattr(gathering, name, HANG_S)
    settings = WorkerConfig(
        home=tmp_path / "a" / "b",
        pool=1,
        deployment=tmp_path / "none.json",
        key_file=tmp_path / "none.key",
        coordinator_url="http://127.0.0.1:9",
    )
    seen = gather("worker", settings, raw=False)
    assert "none.key cannot be read" in seen.address.detail
    assert "none.json cannot be read" in seen.deployment.detail
    assert "http://127.0.0.1:9" in seen.coordinator.detail
    assert (seen.chain, seen.pool, seen.relays, seen.record, seen.params) == (None, None, None, None, None)
    assert seen.device.has_idle_gpu
    assert seen.isolation.isolation.level in LEVELS
    assert seen.device.memory > 1 << 28
    folder = seen.folders[settings.home]
    assert (folder.is_writable, folder.held) == (True, 0)
    assert not settings.home.exists(), "a doctor leaves nothing behind"
    settings.home.mkdir(parents=True)
    (settings.home / "x").write_bytes(b"12345")
    assert gather("worker", settings, raw=False).folders[settings.home].held == 5


@pytest.mark.parametrize(
    ("name", "text", "role"),
    [
        ("worker-2.toml", "", "worker"), ("My-Validator.toml", "", "validator"),
        ("coordinator.toml", "", "coordinator"),
        ("trainer.toml", "[optim]", "trainer"), ("my-train.toml", "seq_len = 1", "train"),
        ("gpu.toml", 'origin_root = "o"', "trainer"), ("a.toml", "heartbeat_seconds = 1", "worker"),
        ("worker-and-trainer.toml", 'origin_root = "o"', "trainer"), ("a.toml", "verdict_seconds = 1", "validator"),
        ("net.toml", "port = 1", "coordinator"),
    ],
)  # fmt: skip
def test_guess_role__name_or_keys(tmp_path, name, text, role):
    (tmp_path / name).write_text(text)
    assert guess_role(tmp_path / name) == role


@pytest.mark.parametrize(
    ("text", "code"),
    [("pool = 1", "unknown_role"), ("port = 1\norigin_root = 'o'", "unknown_role"), ("=", "no_settings_file")],
)
def test_guess_role__cannot_be_known__says_to_name_it(tmp_path, text, code):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(OperatorError, match="--role") as caught:
        guess_role(tmp_path / "x.toml")
    assert caught.value.code == code


def test_doctor__role_without_settings__is_refused(command):
    answer = command("doctor", "--role", "worker")
    assert (answer.code, answer.err.startswith("covey: no_settings_file: ")) == (1, True)


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8000"), ("0.0.0.0", "http://127.0.0.1:8000"), ("::", "http://[::1]:8000")],
)
def test_find_coordinator_url__its_own_settings__is_what_has_its_port_on_this_machine(tmp_path, host: str, url: str):
    settings = CoordinatorConfig(
        home=tmp_path, pool=1, deployment=tmp_path / "d", key_file=tmp_path / "k", host=host, port=8000
    )
    assert find_coordinator_url(settings, is_port_free=False) == url
    assert find_coordinator_url(settings, is_port_free=True) is None
