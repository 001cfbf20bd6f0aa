"""Harnesses on disks of their own; `kill_at` raises at the n-th durable action, so a second `run` finds what a killed
process would leave."""

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
    """Harnesses on disks of their own; they share the environment, whose word list takes a quarter of a second."""
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
    """`kill_at(n)`: the n-th durable action from now on (a sync or a rename) and all later ones do not happen and kill;
    None: all happen.  Returns a function that tells how many were begun."""
    patch = pytest.MonkeyPatch()

    def arm(n: int | None) -> Callable[[], int]:
        seen = 0
        patch.undo()

        def wrap(name: str) -> None:
            original = getattr(os, name)

            def act(*args: Any, **kwargs: Any) -> Any:
                nonlocal seen
                seen += 1
                if n is not None and seen >= n:
                    raise Killed
                return original(*args, **kwargs)

            patch.setattr(os, name, act)

        for name in ("fsync", "replace"):
            wrap(name)
        return lambda: seen

    yield arm
    patch.undo()
