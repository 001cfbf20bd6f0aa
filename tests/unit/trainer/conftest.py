"""Fixtures: trainer harnesses with separate folders, and `kill_at`, which simulates a killed process.

`kill_at` raises at the n-th durable action, so that a second `run` finds the state that a killed process would leave.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.environments import registry
from covey.environments.base import Environment, EnvironmentSpec
from covey.environments.registry import DEMO
from covey.protocol.ids import Hash
from covey.protocol.submission_file.rows import Rollout
from tests.fakes.training import Killed, TrainerHarness


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def environment() -> Environment:
    return registry.load(DEMO)


@pytest.fixture(scope="session")
def made() -> dict[tuple[Hash, int], list[Rollout]]:
    return {}


@pytest.fixture
def build_harness(
    tmp_path: Path, environment: Environment, made: dict[tuple[Hash, int], list[Rollout]]
) -> Iterator[Callable[..., TrainerHarness]]:
    """Return a function that builds harnesses with separate folders.

    They share the environment, because loading its word list takes long.
    """
    harnesses: list[TrainerHarness] = []

    def make(**settings: Any) -> TrainerHarness:
        root = tmp_path / f"harness-{len(harnesses)}"
        root.mkdir()
        harness = TrainerHarness(root, **settings)
        harness.coordinator.made = made
        harnesses.append(harness)
        return harness

    def load(spec: EnvironmentSpec, *_: object) -> Environment:
        assert spec == DEMO
        return environment

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "load", load)
        yield make
    for harness in harnesses:
        harness.close()


@pytest.fixture
def kill_at() -> Iterator[Callable[[int | None], Callable[[], int]]]:
    """Return a function `kill_at(n)`: the n-th durable action from now (a sync or a rename) and all later ones raise
    `Killed` instead of happening.

    With None all actions happen. `kill_at` returns a function that counts the actions begun so far.
    """
    patch = pytest.MonkeyPatch()

    def arm(n: int | None) -> Callable[[], int]:
        count = 0
        patch.undo()

        def wrap(name: str) -> None:
            original = getattr(os, name)

            def act(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if n is not None and count >= n:
                    raise Killed
                return original(*args, **kwargs)

            patch.setattr(os, name, act)

        for name in ("fsync", "replace"):
            wrap(name)
        return lambda: count

    yield arm
    patch.undo()
