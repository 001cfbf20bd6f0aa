"""Policies are loaded one at a time and once each, and a policy that failed to load does not count as loaded."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from covey.errors import ProtocolError, TransientError
from covey.network import policy_loader
from covey.network.policy_loader import PolicyLoader
from covey.protocol.ids import Step
from covey.protocol.params import ModelParams

pytestmark = pytest.mark.unit


class Engine:
    policy_version: int | None = None
    load_pause = 0.25


class Disk:
    """Fake policies, each in a folder named after its record hash."""

    def __init__(self) -> None:
        self.required: list[tuple[Any, ...]] = []

    async def require(self, version: int, record_hash: str | None, *, to_load: bool) -> Path:
        self.required.append((version, record_hash, to_load))
        await asyncio.sleep(0)
        return Path(f"{version}-{record_hash}")

    def get_trained_at(self, folder: Path) -> float:
        return 1000.0


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the folders that the engine loads, in order. Loading a folder named "bad" fails."""
    names: list[str] = []

    def load(engine: Engine, folder: Path, version: int, params: ModelParams) -> None:
        names.append(folder.name)
        if "refused" in folder.name:
            raise ProtocolError("policy_mismatch", "other end tokens")
        if "bad" in folder.name:
            raise TransientError("engine_died", "gone")
        engine.policy_version = version

    monkeypatch.setattr(policy_loader, "load_pool_policy", load)
    return names


async def test_load__the_same_one_again__is_loaded_once(loads: list[str]) -> None:
    loader = PolicyLoader(Engine(), Disk(), ModelParams())
    await asyncio.gather(*(loader.load(3, "a") for _ in range(3)))
    assert (loads, loader.folder) == (["3-a"], Path("3-a"))


async def test_load__version_with_another_manifest__is_loaded(loads: list[str]) -> None:
    loader = PolicyLoader(Engine(), Disk(), ModelParams())
    for manifest in ("a", "b", "b"):
        await loader.load(3, manifest)
    assert loads == ["3-a", "3-b"]


async def test_load__failed_before__the_previous_policy_is_loaded_again(loads: list[str]) -> None:
    loader = PolicyLoader(Engine(), Disk(), ModelParams())
    await loader.load(3, "a")
    with pytest.raises(TransientError):
        await loader.load(4, "bad")
    assert loader.folder is None
    await loader.load(3, "a")
    assert loads == ["3-a", "4-bad", "3-a"]


async def test_load__stopped_while_it_waits_for_the_policy__raises_stopped(loads: list[str]) -> None:
    class Away(Disk):
        async def require(self, *_: Any, **__: Any) -> Path:
            await asyncio.sleep(60)
            raise AssertionError("cancelled before")

    stop = asyncio.Event()
    stop.set()
    with pytest.raises(TransientError, match="stopped"):
        await PolicyLoader(Engine(), Away(), ModelParams()).load(3, stop=stop)
    assert loads == []


async def test_load__policy_that_the_pool_does_not_allow__is_remembered(loads: list[str]) -> None:
    loader = PolicyLoader(Engine(), Disk(), ModelParams())
    with pytest.raises(ProtocolError):
        await loader.load(3, "refused")
    with pytest.raises(TransientError):
        await loader.load(4, "bad")
    assert loader.refused == {3}


async def test_load__policy__says_how_long_it_took_from_the_optimizer_step(loads: list[str]) -> None:
    loader = PolicyLoader(Engine(), Disk(), ModelParams(), clock=lambda: 1007.5)
    with capture_logs() as logs:
        await loader.load(3, "a")
        await loader.load(3, "a")
    assert [(each["event"], each["step"], each["seconds_to_ready"], each["pause"]) for each in logs] == [
        ("policy is live", 3, 7.5, 0.25)
    ]


def test_newest__fetched_and_not_refused__by_hand() -> None:
    loader = PolicyLoader(Engine(), Disk(), ModelParams())
    assert loader.newest is None
    loader.fetched = {Step(0), Step(2), Step(3)}
    assert loader.newest == 3
    loader.refused = {Step(3)}
    assert loader.newest == 2
    loader.fetched = {Step(3)}
    assert loader.newest is None
