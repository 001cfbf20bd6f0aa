"""A worker's context around the tiny model and a coordinator in memory; `start` builds it anew, as after a crash."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from covey import devnet
from covey.engines.hf import HuggingFaceEngine
from covey.environments import registry
from covey.environments.registry import DEMO
from covey.model.tiny import tiny_folder
from covey.protocol.messages import Domain
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.pool import make_address
from tests.fakes.tools import DOMAIN, MANIFEST, grade_here, make_model_params
from worker.app import Context
from worker.outgoing import Outgoing
from worker.pipeline import Pipeline

LEDGER = Domain(chain_id=31337, contract=make_address("ledger"))


@pytest.fixture(scope="session")
def engine() -> HuggingFaceEngine:
    torch.set_num_threads(1)
    engine = HuggingFaceEngine()
    engine.load_policy(tiny_folder(), 0)
    return engine


@pytest.fixture
def coordinator() -> FakeCoordinator:
    return FakeCoordinator(
        node=devnet.derive_wallet("test", "node").address,
        operator=devnet.derive_wallet("test", "operator"),
        receipt_domain=DOMAIN,
        ledger_domain=LEDGER,
    )


@pytest.fixture
def start(engine: HuggingFaceEngine, coordinator: FakeCoordinator, tmp_path: Path) -> Callable[..., Context]:
    """The same disk, another process."""

    async def require(version: int) -> Path:
        return tiny_folder()

    def build(**changes: Any) -> Context:
        network = SimpleNamespace(
            pool=1,
            params=make_model_params(),
            operator=devnet.derive_wallet("test", "operator").address,
            wallet=devnet.derive_wallet("test", "node"),
            coordinator=coordinator,
            chain=SimpleNamespace(block_number=lambda: coordinator.block),
            contracts=SimpleNamespace(
                policies=SimpleNamespace(steps_of=lambda pool: 1), ledger=SimpleNamespace(epochs_of=lambda pool: 3)
            ),
            policies=SimpleNamespace(get_manifest_hash=lambda version: MANIFEST, require=require),
            receipt_domain=DOMAIN,
            ledger_domain=LEDGER,
            environment=DEMO,
        )
        values: dict[str, Any] = {
            "config": SimpleNamespace(wait_seconds=0.1, heartbeat_seconds=0.05),
            "network": network,
            "contributor": make_address("contributor"),
            "engine": engine,
            "environment": registry.load(DEMO),
            "grade": grade_here,
            "pipeline": Pipeline(together=1, ahead=1, lease_seconds=30.0),
            "outgoing": Outgoing(tmp_path / "outgoing"),
            "stop": asyncio.Event(),
            "clock": lambda: 1000.0,
        }
        return Context(**(values | changes))

    return build
