"""A worker's context around an engine and a coordinator in memory. It can be rebuilt on a folder, as after a crash."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from covey.devnet import deploy
from covey.engines.base import Engine
from covey.environments import registry
from covey.environments.registry import DEMO
from covey.model.tiny import tiny_folder
from covey.network.kept_rewards import KeptRewards
from covey.network.policy_loader import PolicyLoader
from covey.protocol.eip712 import Domain
from covey.protocol.ids import Step
from covey.protocol.prices import ScheduledPrice
from covey.protocol.verdict_fees import VerdictFees
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.grading import grade_here
from tests.fakes.pool import make_address
from tests.fakes.tools import DOMAIN, MANIFEST, make_model_params
from worker.context import Context
from worker.engine_health import EngineHealth
from worker.instance import load_instance
from worker.leases import LeaseQueue
from worker.shutdown import Shutdown
from worker.submission_store import SubmissionStore

LEDGER = Domain(chain_id=31337, contract=make_address("ledger"))


def build_coordinator() -> FakeCoordinator:
    """Return a coordinator with the same node and operator as `build_context`."""
    return FakeCoordinator(
        node=deploy.derive_wallet("test", "node").address,
        operator=deploy.derive_wallet("test", "operator"),
        receipt_domain=DOMAIN,
        ledger_domain=LEDGER,
    )


def build_context(engine: Engine, coordinator: FakeCoordinator, folder: Path, **changes: Any) -> Context:
    """Build a context whose policy 0 is the shipped tiny model. `changes` replace fields of the context."""

    async def require(version: int, *_: object, **__: object) -> Path:
        return tiny_folder()

    async def prefetch() -> bool:
        return False

    def list_versions(versions: Sequence[int]) -> list[int]:
        return [0] if 0 in versions else []

    network = SimpleNamespace(
        pool=1,
        params=make_model_params(),
        wallet=deploy.derive_wallet("test", "node"),
        coordinator=coordinator,
        chain=SimpleNamespace(get_block=lambda tag: SimpleNamespace(timestamp=1000)),
        contracts=SimpleNamespace(
            policies=SimpleNamespace(steps_of=lambda pool: 1),
            ledger=SimpleNamespace(epochs_of=lambda pool: 0, escrow_of=lambda pool: 10**18, owed_of=lambda pool: 0),
            pools=SimpleNamespace(
                signer_at=lambda pool, at: deploy.derive_wallet("test", "operator").address,
                get_prices=lambda pool: (ScheduledPrice(reward_per_million=1, start=0),),
            ),
        ),
        policies=SimpleNamespace(
            get_record_hash=lambda version: MANIFEST,
            require=require,
            prefetch=prefetch,
            list_versions=list_versions,
            get_trained_at=lambda folder: 0.0,
        ),
        receipt_domain=DOMAIN,
        ledger_domain=LEDGER,
        terms=SimpleNamespace(epoch_length=1, verdict_fees=VerdictFees()),
        environment=DEMO,
    )
    values: dict[str, Any] = {
        "config": SimpleNamespace(wait_seconds=0.1, heartbeat_seconds=0.05, watch=False),
        "network": network,
        "contributor": make_address("contributor"),
        "instance": load_instance(folder),
        "engine": engine,
        "contract": "",
        "environment": registry.load(DEMO),
        "grade": grade_here,
        "engine_threads": ThreadPoolExecutor(2),
        "leases": LeaseQueue(together=1, ahead=1, lease_seconds=30.0, generation_seconds=1.0),
        "health": EngineHealth(),
        "submissions": SubmissionStore(folder / "outgoing"),
        "rewards": KeptRewards(folder / "rewards"),
        "shutdown": Shutdown(),
        "stop": asyncio.Event(),
        "clock": lambda: 1000.0,
    }
    values |= changes
    loader = PolicyLoader(values["engine"], values["network"].policies, values["network"].params.model)
    loader.fetched.add(Step(0))
    loader.folder = tiny_folder()
    return Context(**{"loader": loader} | values)
