"""The demo's network of processes with one more process for each kind of dishonest work, and how each is caught."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from covey.chain import events
from covey.chain.follower import SeenBlock
from covey.demo.demo_network import POOL, DemoNetwork
from covey.demo.demo_summary import is_accepted
from covey.demo.participants import DemoOptions
from covey.errors import ProtocolError, TransientError
from covey.local.processes import Running
from covey.protocol.api.public import StatusView, SubmissionView
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Reason, Severity
from tests.cheats.content import FalseEndProven, InsertedAnswer
from tests.cheats.numbers import DuplicateRow, InventedReward
from tests.cheats.slots import CopiedFromAnotherNode, PermutedSiblings
from tests.e2e.submitting import ShortParticipants

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.full]
ROOT = Path(__file__).resolve().parents[2]
HONEST = "worker-1"
CHEATS = {
    "worker-2": FalseEndProven,
    "worker-3": InventedReward,
    "worker-4": PermutedSiblings,
    "worker-5": CopiedFromAnotherNode,
    "worker-6": DuplicateRow,
    "worker-7": InsertedAnswer,
}
ROWS = (7, 8, 9, 10, 12, 13)
STATES = {Severity.SOFT: SubmissionState.VOID, Severity.HARD: SubmissionState.REJECTED}
WATCH_SECONDS = 1200.0


class Masked(DemoNetwork):
    """The demo's network with some workers that cheat."""

    def start(self, name: str) -> Running:
        if name not in CHEATS:
            return super().start(name)
        config = str(self.participants.folder / f"{name}.toml")
        return self.processes.start(name, CHEATS[name].__name__, "--config", config, module="tests.e2e.cheating_worker")


@dataclass(kw_only=True)
class Seen:
    """Public facts, from the coordinator's public views and the chain."""

    status: StatusView | None = None
    submissions: Sequence[SubmissionView] = ()
    opened: dict[str, events.CaseOpened] = field(default_factory=dict)
    """Cases by receipt hash."""
    slashed: set[str] = field(default_factory=set)
    """Receipt hashes of executed cases."""
    cursor: tuple[SeenBlock, ...] = ()

    async def look(self, network: DemoNetwork) -> None:
        """Read everything once. The chain comes first, so that the submission of any case it shows is decided."""
        progress = await asyncio.to_thread(network.follower.poll, self.cursor)
        self.submissions = await network.client.list_submissions(limit=1000)
        self.status = await network.client.get_status()
        self.cursor = progress.cursor
        for event in progress.events:
            if isinstance(event, events.CaseOpened):
                self.opened[event.receipt_hash] = event
            elif isinstance(event, events.CaseExecuted):
                self.slashed.add(event.receipt_hash)

    def list_decided(self, node: str) -> list[SubmissionView]:
        return [s for s in self.submissions if s.node == node and s.state != SubmissionState.SUBMITTED]


def is_over(seen: Seen, network: DemoNetwork) -> bool:
    """Return whether every worker's first submission is decided and each hard one has its case."""
    nodes = {worker.name: worker.node for worker in network.participants.workers}
    for name, node in nodes.items():
        decided = seen.list_decided(node)
        is_hard = name in CHEATS and CHEATS[name].reason.severity is Severity.HARD
        if not decided or (is_hard and not any(s.receipt_hash in seen.opened for s in decided)):
            return False
    return True


async def watch(network: DemoNetwork) -> Seen:
    """Look until everything is decided, or until WATCH_SECONDS have passed."""
    seen, deadline = Seen(), time.monotonic() + WATCH_SECONDS
    while not is_over(seen, network):
        assert time.monotonic() < deadline, [(s.node, s.state, s.reason) for s in seen.submissions]
        await asyncio.sleep(0.5)
        network.processes.require_alive()
        with contextlib.suppress(TransientError, ProtocolError):  # the coordinator is starting
            await seen.look(network)
    return seen


def get_locked(network: DemoNetwork, name: str) -> int:
    worker = next(each for each in network.participants.workers if each.name == name)
    return network.contracts.stakes.locked_of(POOL, network.participants.get_address(worker.contributor))


async def test_network__a_process_for_each_cheat__each_is_found_and_the_honest_one_is_not(tmp_path, monkeypatch):
    assert tuple(cheat.row for cheat in CHEATS.values()) == ROWS
    monkeypatch.chdir(ROOT)  # where the processes find this test's modules
    network = Masked(ShortParticipants(tmp_path / "net", DemoOptions(workers=1 + len(CHEATS), cheats=0)))
    try:
        network.open()
        network.start_all()
        seen = await watch(network)
        locked = {worker.name: get_locked(network, worker.name) for worker in network.participants.workers}
        await seen.look(network)
        await network.client.close()
    finally:
        network.close()

    nodes = {worker.name: worker.node for worker in network.participants.workers}
    for name, cheat in CHEATS.items():
        decided, node = seen.list_decided(nodes[name]), seen.status.nodes[nodes[name]]
        assert {(s.reason, s.units) for s in decided} == {(cheat.reason.name.lower(), 0)}, cheat.__name__
        assert {s.state for s in decided} <= {STATES[cheat.reason.severity], SubmissionState.SETTLED}, cheat.__name__
        assert node.accepted == 0
        cases = {case.receipt_hash: Reason(case.reason) for case in seen.opened.values() if case.node == nodes[name]}
        assert set(cases) <= {s.receipt_hash for s in decided}, cheat.__name__
        if cheat.reason.severity is Severity.HARD:
            assert set(cases.values()) == {cheat.reason}
            assert node.suspended in {"rejected", "case"}, cheat.__name__
            assert locked[name] > 0 or set(cases) & seen.slashed, cheat.__name__
        else:
            assert (cases, locked[name]) == ({}, 0), cheat.__name__

    honest = seen.list_decided(nodes[HONEST])
    assert honest
    assert [s for s in honest if not is_accepted(s) or s.units <= 0] == []
    assert seen.status.nodes[nodes[HONEST]].suspended == ""
    assert locked[HONEST] == 0
    assert {case.node for case in seen.opened.values()} <= {nodes[name] for name in CHEATS}
    assert set(seen.status.reasons) == {cheat.reason.name.lower() for cheat in CHEATS.values()}
