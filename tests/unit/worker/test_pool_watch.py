"""What a worker reports of its pool, and that it reports it once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey.network.own_receipts import ReceiptFinding
from covey.runtime.cycle import CycleResult
from tests.fakes.account import ALICE, HASH
from tests.unit.covey.network.test_watch_steps import see
from worker import pool_watch
from worker.config import WorkerConfig
from worker.pool_watch import PoolWatch, build_watch, watch_pool

pytestmark = pytest.mark.unit


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append(("warning", values))

    def info(self, event: str, **values: Any) -> None:
        self.lines.append(("info", values))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr(pool_watch, "get_logger", lambda: log)
    return log


async def test_watch_pool__receipt_is_paid_less_and_a_reward_is_due__both_are_logged_once(log: Log):
    finding = ReceiptFinding(receipt_hash=HASH, code="units_differ", text="it is paid for 3 units, but claims 4")
    claimable = SimpleNamespace(epoch=7, cumulative=5)
    looks = [see(findings=[finding], claimable=claimable)] * 2 + [see(), see(findings=[finding])]
    watch = PoolWatch(lambda: iter(looks).__next__)
    assert await watch_pool(watch) is CycleResult.IDLE
    assert [(level, values["message"]) for level, values in log.lines] == [
        ("warning", "it is paid for 3 units, but claims 4"),
        ("info", "5 are earned by epoch 7 and not claimed"),
    ]
    assert (log.lines[0][1]["code"], log.lines[0][1]["about"]) == ("units_differ", HASH)
    await watch_pool(watch)
    assert len(log.lines) == 2
    await watch_pool(watch)
    await watch_pool(watch)  # It is found again.
    assert len(log.lines) == 3


def test_build_watch__settings__are_those_of_the_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    opened: list[Any] = []
    monkeypatch.setattr(pool_watch, "Account", lambda *arguments, **named: (arguments, named))
    monkeypatch.setattr(
        pool_watch,
        "PoolWatcher",
        lambda *arguments, **named: opened.append((arguments, named)) or SimpleNamespace(look=see),
    )
    files = {"home": tmp_path, "deployment": tmp_path / "d.json", "key_file": tmp_path / "k"}
    config = WorkerConfig(**files, pool=3, coordinator_url="http://c", rpc_url="http://n")
    assert config.watch
    assert build_watch(config, ALICE).open_look() is see
    account = ((tmp_path / "d.json", None, 3), {"rpc_url": "http://n"})
    named = {"coordinator_url": "http://c", "folder": tmp_path, "sent": "outgoing/sent/*.json"}
    assert opened == [((account, ALICE), named)]
