"""The tiny model's engine, an in-memory coordinator, and `start`, which rebuilds the worker as after a crash."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from covey.engines.hf.engine import HuggingFaceEngine
from covey.model.tiny import tiny_folder
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.worker import build_context, build_coordinator
from worker.context import Context


@pytest.fixture(scope="session")
def engine() -> HuggingFaceEngine:
    torch.set_num_threads(1)
    engine = HuggingFaceEngine()
    engine.load_policy(tiny_folder(), 0)
    return engine


@pytest.fixture(autouse=True)
def first_policy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Load the tiny policy again after a test that has loaded another one into the engine of all tests."""
    engine = request.getfixturevalue("engine") if "engine" in request.fixturenames else None
    yield
    if engine is not None and engine.policy_version != 0:
        engine.load_policy(tiny_folder(), 0)


@pytest.fixture
def coordinator() -> FakeCoordinator:
    return build_coordinator()


@pytest.fixture
def start(engine: HuggingFaceEngine, coordinator: FakeCoordinator, tmp_path: Path) -> Callable[..., Context]:
    """Return a function that builds a worker on the same disk, as a new process would."""

    def start_with(**changes: object) -> Context:
        return build_context(**({"engine": engine, "coordinator": coordinator, "folder": tmp_path} | changes))

    return start_with
