"""Triggers: which there are, and that a broker that is gone costs neither time nor state."""

import base64
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator.jobs import build_jobs
from coordinator.queue.celery_app import (
    MAX_WAITING,
    BackgroundJobTrigger,
    JobTrigger,
    _LockedScheduler,
    _report,
    build_celery,
)
from coordinator.queue.job_runs import JobRuns
from coordinator.queue.routes import ROUTES
from covey.errors import OperatorError

pytestmark = pytest.mark.unit


def test_build_jobs__names__are_those_of_the_routes():
    assert set(build_jobs(None)) == set(ROUTES)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "amqp://guest:guest@127.0.0.1:1//"])
def test_trigger__broker_that_is_gone__is_lost_at_once_and_said(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With the broker's own settings, a trigger waits for four attempts."""
    attempts, connect = list[object](), socket.socket.connect

    def count_and_connect(connecting: socket.socket, address: object) -> None:
        attempts.append(address)
        connect(connecting, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", count_and_connect)
    with capture_logs() as logs:
        JobTrigger(build_celery(url, tmp_path)).trigger("begin_epoch")
    assert attempts == [("127.0.0.1", 1)]
    assert [(line["event"], line["job"]) for line in logs] == [("a trigger was lost", "begin_epoch")]


def test_trigger__job_that_is_none__is_the_operators_mistake(tmp_path: Path):
    with pytest.raises(OperatorError) as caught:
        JobTrigger(build_celery("", tmp_path)).trigger("rm")
    assert caught.value.code == "unknown_job"


def test_folder__connection__is_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with build_celery("", tmp_path).connection_for_read() as connection:
        connection.connect()
        assert connection.info()["transport"] == "covey-folder"
    assert caplog.records == []


def test_trigger__folder__holds_one_message_for_each(tmp_path: Path):
    jobs = JobTrigger(build_celery("", tmp_path))
    jobs.trigger("begin_epoch")
    jobs.trigger("begin_epoch")
    assert len(list((tmp_path / "broker" / "messages").iterdir())) == 2


def test_build_celery__settings__speak_json_and_forget_nothing_unfinished(tmp_path: Path):
    conf = build_celery("", tmp_path).conf
    assert (conf.accept_content, conf.task_serializer) == (["json"], "json")
    assert (conf.task_acks_late, conf.task_reject_on_worker_lost, conf.worker_prefetch_multiplier) == (True, True, 1)


def test_trigger__after_a_commit__names_it_and_the_object(tmp_path: Path):
    app = build_celery("", tmp_path)
    jobs = JobTrigger(app, get_commit=lambda: 17)
    jobs.trigger("close_epoch", epoch=3)
    (message,) = (tmp_path / "broker" / "messages").iterdir()
    assert message.name.endswith(".covey-bulk.msg")
    body = json.loads(base64.b64decode(json.loads(message.read_text())["body"]))
    assert body[1] == {"epoch": 3, "commit": 17}


def read_arguments(folder: Path) -> list[dict[str, Any]]:
    """Arguments of the messages in a broker's folder, oldest first."""
    bodies = (json.loads(path.read_text())["body"] for path in sorted(folder.iterdir()))
    return [json.loads(base64.b64decode(body))[1] for body in bodies]


def test_trigger__receipts__come_in_messages_of_a_hundred(tmp_path: Path):
    jobs = JobTrigger(build_celery("", tmp_path))
    jobs.trigger("dispatch_validation", receipts=[f"{n:03}" for n in range(201)])
    sizes = [len(each["receipts"]) for each in read_arguments(tmp_path / "broker" / "messages")]
    assert sorted(sizes) == [1, 100, 100]


def test_background_trigger__receipts_that_come_close_together__are_one_message(tmp_path: Path):
    jobs = BackgroundJobTrigger(JobTrigger(build_celery("", tmp_path)))
    jobs.trigger("close_epoch", epoch=3)  # The thread begins with this one.
    for receipt in ("a", "b", "a"):
        jobs.trigger("dispatch_validation", receipts=[receipt])
    jobs.close()
    sent = [each["receipts"] for each in read_arguments(tmp_path / "broker" / "messages") if "receipts" in each]
    assert sorted(receipt for receipts in sent for receipt in receipts) in (["a", "b"], ["a", "a", "b"])
    assert len(sent) <= 2


def test_remind__names_no_commit_and_fills_no_queue(tmp_path: Path):
    """A job that only the clock makes due must run although nothing was committed since its last run."""
    app = build_celery("", tmp_path)
    jobs = JobTrigger(app, get_commit=lambda: 17)
    with capture_logs() as logs:
        for _ in range(MAX_WAITING + 5):
            jobs.remind("close_epoch", epoch=3)
    sent = read_arguments(tmp_path / "broker" / "messages")
    assert sent == [{"epoch": 3}] * MAX_WAITING
    assert [(line["event"], line["queue"]) for line in logs] == [("nobody serves a queue", "covey-bulk")]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "amqp://guest:guest@127.0.0.1:1//"])
def test_remind__broker_that_is_gone__is_lost_and_said(url: str, tmp_path: Path):
    with capture_logs() as logs:
        JobTrigger(build_celery(url, tmp_path)).remind("begin_epoch")
    assert {line["event"] for line in logs} == {"a trigger was lost"}


def test_build_celery__messages_of_beat__expire_soon_after_the_next_one(tmp_path: Path):
    schedule = build_celery("", tmp_path).conf.beat_schedule
    assert {name: entry["schedule"] for name, entry in schedule.items()} == {"sweep": 1.0, "sweep_settled": 10.0}
    assert schedule["sweep"]["options"] == {"expires": 61.0}


def test_beat__another_process_leads__sends_nothing_until_it_is_gone(tmp_path: Path):
    leads = [False]
    scheduler = _LockedScheduler(build_celery("", tmp_path), is_leader=lambda: leads[0])
    messages = tmp_path / "broker" / "messages"
    deadline = time.monotonic() + 60
    for _ in range(3):
        assert scheduler.tick() > 0
    assert list(messages.iterdir()) == []
    leads[0] = True
    while not list(messages.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(max(0.0, min(0.1, scheduler.tick())))


@pytest.mark.parametrize("url", ["kafkaesque://host", "http://host", "localhost:6379"])
def test_build_celery__no_transport_for_its_url__is_refused(tmp_path: Path, url: str):
    with pytest.raises(OperatorError, match=r"bad_broker_url: .*Use redis://HOST:6379/0"):
        build_celery(url, tmp_path)


def test_beat__queue_that_nobody_serves__gets_no_more_messages_and_is_logged_once(tmp_path: Path):
    app = build_celery("", tmp_path)
    scheduler = _LockedScheduler(app, is_leader=lambda: True)
    folder = tmp_path / "broker" / "messages"

    def count(queue: str) -> int:
        return len(list(folder.glob(f"*.covey-{queue}.msg")))

    with capture_logs() as logs:
        for _ in range(MAX_WAITING + 5):
            scheduler.apply_entry(scheduler.schedule["sweep"], producer=scheduler.producer)
    assert count("now") == MAX_WAITING
    assert [(line["event"], line["queue"]) for line in logs] == [("nobody serves a queue", "covey-now")]
    next(folder.glob("*.covey-now.msg")).unlink()
    scheduler.apply_entry(scheduler.schedule["sweep"], producer=scheduler.producer)
    assert count("now") == MAX_WAITING


def test_report__end__logs_the_metrics_of_each_job():
    runs = JobRuns("assign_tasks", lambda: None, read_commit=lambda: 1)
    runs.run()
    over = threading.Event()
    over.set()
    with capture_logs() as logs:
        _report([runs], over)
    assert [(line["event"], line["job"], line["runs"], line["failures"]) for line in logs] == [
        ("job statistics", "assign_tasks", 1, 0)
    ]
