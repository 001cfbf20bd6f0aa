"""Kicks: which there are, and that a broker that is gone costs neither time nor state."""

import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from coordinator.jobs import build_jobs
from coordinator.queue.celery_app import BEAT_SECONDS, Kicker, _guard, build_celery
from covey.errors import OperatorError, ProtocolError, TransientError

pytestmark = pytest.mark.unit


def test_build_jobs__names__are_those_that_beat_kicks():
    assert set(build_jobs(None)) == set(BEAT_SECONDS)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "amqp://guest:guest@127.0.0.1:1//"])
def test_kick__broker_that_is_gone__is_lost_at_once_and_said(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With the broker's own settings, a kick waits for four attempts."""
    attempts, connect = list[object](), socket.socket.connect

    def count_and_connect(connecting: socket.socket, address: object) -> None:
        attempts.append(address)
        connect(connecting, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", count_and_connect)
    with capture_logs() as logs:
        Kicker(build_celery(url, tmp_path)).kick("tally")
    assert attempts == [("127.0.0.1", 1)]
    assert [(line["event"], line["job"]) for line in logs] == [("kick lost", "tally")]


def test_kick__job_that_is_none__is_the_operators_mistake(tmp_path: Path):
    with pytest.raises(OperatorError) as caught:
        Kicker(build_celery("", tmp_path)).kick("rm")
    assert caught.value.code == "unknown_job"


def test_folder__connection__is_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with build_celery("", tmp_path).connection_for_read() as connection:
        connection.connect()
        assert connection.info()["transport"] == "covey-folder"
    assert caplog.records == []


def test_kick__folder__holds_one_message_for_each(tmp_path: Path):
    kicker = Kicker(build_celery("", tmp_path))
    kicker.kick("tally")
    kicker.kick("tally")
    assert len(list((tmp_path / "broker" / "messages").iterdir())) == 2


def test_build_celery__settings__speak_json_and_forget_nothing_unfinished(tmp_path: Path):
    conf = build_celery("", tmp_path).conf
    assert (conf.accept_content, conf.task_serializer) == (["json"], "json")
    assert (conf.task_acks_late, conf.task_reject_on_worker_lost, conf.worker_prefetch_multiplier) == (True, True, 1)


def test_guard__transient_error__waits_for_the_next_kick_and_others_are_seen():
    def fail(error: Exception):
        def job() -> None:
            raise error

        return _guard(job)

    fail(TransientError("chain_unreachable", "gone"))()
    with pytest.raises(ProtocolError):
        fail(ProtocolError("x", "y"))()


@pytest.mark.parametrize("url", ["kafkaesque://host", "http://host", "localhost:6379"])
def test_build_celery__no_transport_for_its_url__is_refused(tmp_path: Path, url: str):
    with pytest.raises(OperatorError, match=r"bad_broker_url: .*Use redis://HOST:6379/0"):
        build_celery(url, tmp_path)
