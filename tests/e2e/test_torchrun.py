"""The demo's network with a trainer of two processes, which dies with either of them and resumes as two or one."""

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from covey.demo import demo_network as network_module
from covey.demo.demo_network import DemoNetwork
from covey.demo.participants import DemoOptions, Participants
from covey.demo.scenario import Demo
from covey.local.processes import Running, build_environment
from covey.runtime.http import find_free_ports
from tests.e2e.test_crashes import watch
from tests.fakes.commands import invoke

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ENDS = 300
"""Timeout in seconds for the end of all processes of a trainer after one is lost. torchrun itself waits 30 s."""
SILENCE = 20


class SharedNetwork(DemoNetwork):
    """The demo's network with a trainer that torchrun starts while `ranks` is more than one."""

    ranks = 2

    def start(self, name: str) -> Running:
        if name != "trainer" or self.ranks == 1:
            return super().start(name)
        (port,) = find_free_ports(1)
        launch = ["--nproc-per-node", str(self.ranks), "--master-addr", "127.0.0.1", "--master-port", str(port)]
        return self.processes.start(name, *launch, "-m", "covey", *self._commands[name], module="torch.distributed.run")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        network_module, "build_environment", lambda scratch: build_environment(scratch) | {"GLOO_SOCKET_IFNAME": "lo"}
    )
    with tempfile.TemporaryDirectory(prefix="covey-test-") as name:
        yield Path(name) / "net"


def find_ranks(parent: int) -> list[int]:
    """Return the process ids of the ranks that a torchrun started, rank 0 first."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            status = (path / "status").read_text()
            environment = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = [each for each in environment if each.startswith(b"RANK=")]
        if f"PPid:\t{parent}\n" in status and "covey trainer run" in line and rank:
            found[int(rank[0].removeprefix(b"RANK="))] = int(path.name)
    return [found[rank] for rank in sorted(found)]


def find_files(home: Path) -> set[str]:
    """Return the names of the checkpoints' files, with weights and moments."""
    return {path.stem for path in (home / "checkpoints").glob("[0-9]*/*.safetensors")}


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def end_by_killing(running: Running, rank: int) -> None:
    """Kill one rank. The others and torchrun must end in bounded time, and torchrun must report a failure."""
    ranks = find_ranks(running.pid)
    assert len(ranks) == 2
    os.kill(ranks[rank], signal.SIGKILL)
    assert running.wait(ENDS) != 0
    assert not any(map(is_alive, ranks))


@pytest.mark.full
async def test_network__trainer_of_two_ranks__dies_with_either_and_resumes_at_two_and_at_one(folder):
    demo = Demo(SharedNetwork(Participants(folder, DemoOptions(steps=6, workers=1, cheats=0)), invoke))
    network = demo.network
    trainer = folder / "trainer"
    try:
        demo.set_up()
        await watch(demo, lambda status: status.step >= 2)
        end_by_killing(network.processes.get("trainer"), rank=1)
        network.start("trainer")
        await watch(demo, lambda status: status.step >= 4)
        end_by_killing(network.processes.get("trainer"), rank=0)
        assert find_files(trainer) == {f"shard-0000{rank}-model-0000{n}-of-00002" for rank in (1, 2) for n in (1, 2)}
        network.ranks = 1
        network.start("trainer")
        await demo.watch()
        await network.client.close()
        assert find_files(trainer) >= {"masters", "optimizer"}
        log = (folder / "logs" / "trainer.log").read_text()
        assert '"event": "rank started"' in log
        assert "rank_lost" in log
    finally:
        network.close()


@pytest.mark.full
def test_trainer__stop_signal_to_two_ranks__both_end_with_0(folder):
    demo = Demo(SharedNetwork(Participants(folder, DemoOptions(steps=6, workers=0, cheats=0)), invoke))
    network = demo.network
    try:
        network.open()
        for name in ("coordinator", "jobs", "origin", "relay", "trainer"):
            network.start(name)
        running = network.processes.get("trainer")
        wait_for(lambda: "trainer started" in running.log.read_text())
        rank_0, _ = find_ranks(running.pid)
        os.kill(rank_0, signal.SIGTERM)
        assert running.wait(ENDS) == 0, running.log.read_text()[-2000:]
    finally:
        network.close()


@pytest.mark.full
def test_trainer__rank_0_falls_silent__the_other_gives_it_up_and_both_end(folder):
    network = SharedNetwork(Participants(folder, DemoOptions(steps=1, workers=0, cheats=0)), invoke)
    try:
        network.open()
        network._commands["trainer"] += ["--set", f"rank_seconds={SILENCE}"]
        running = network.start("trainer")
        wait_for(lambda: '"event": "rank started"' in running.log.read_text())
        ranks = find_ranks(running.pid)
        os.kill(ranks[0], signal.SIGSTOP)
        assert running.wait(SILENCE + ENDS) != 0
        assert not any(map(is_alive, ranks))
        assert "rank_lost" in running.log.read_text()
    finally:
        network.close()


def wait_for(is_done, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.1)
