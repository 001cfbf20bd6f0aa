"""A trainer whose newest checkpoint is lost: its messages, and that their advice works."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey.errors import OperatorError
from covey.protocol.policy_record import WEIGHTS_FILE

pytestmark = pytest.mark.unit
Build = Callable[..., Any]


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def copy_policy(harness: Any, step: int) -> Path:
    copied: Path = shutil.copytree(harness.config.home / "exports" / str(step), harness.root / "copy")
    return copied


def damage(harness: Any, step: int) -> None:
    """Cut the weights of an export in half, as a failing disk may leave them.

    They become another file, because the origin's anchor may be the same file, and the harness's workers download it.
    """
    weights: Path = harness.config.home / "exports" / str(step) / WEIGHTS_FILE
    half = weights.read_bytes()[: weights.stat().st_size // 2]
    weights.unlink()
    weights.write_bytes(half)


def limit_claims(harness: Any, most: int) -> None:
    """Limit the claims of each step, so that endless retries end in a failure."""
    original = harness.coordinator.claim_batch

    async def claim_batch(step: int, *, wait_seconds: float) -> Any:
        assert harness.coordinator.claims.count(step) < most
        return await original(step, wait_seconds=wait_seconds)

    harness.coordinator.claim_batch = claim_batch


def test_run__newest_checkpoint_is_damaged_and_published__continues_as_the_messages_advise(
    build_harness: Build,
) -> None:
    harness = build_harness()
    harness.run()
    home, before = harness.config.home, list(harness.chain.hashes)
    harness.change(steps=3)
    (home / "checkpoints" / "2" / "optimizer.safetensors").write_bytes(b"damaged")
    with pytest.raises(OperatorError, match=r"bad_checkpoint.*remove the folder"):
        harness.run()
    shutil.rmtree(home / "checkpoints" / "2")
    advice = r"wrong_checkpoint.*copy home/exports/2, remove home/checkpoints, .*model.path .* initial_step to 2"
    with pytest.raises(OperatorError, match=advice):
        harness.run()
    copied = copy_policy(harness, 2)
    shutil.rmtree(home / "checkpoints")
    harness.change(model={"path": str(copied)}, initial_step=2)
    harness.run()
    assert harness.chain.hashes[:3] == before
    assert len(set(harness.chain.hashes)) == 4
    assert harness.coordinator.claims == [0, 1, 2]
    harness.run()  # from now on it resumes from its checkpoint
    assert len(harness.chain.hashes) == 4
    assert harness.coordinator.claims == [0, 1, 2]


@pytest.mark.parametrize("every", [0, 1])
def test_run__newest_policy_is_damaged__is_exported_again_from_the_checkpoint(every: int, build_harness: Build) -> None:
    harness = build_harness(steps=1, eval={"every": every})
    harness.run()
    folder = harness.config.home / "exports" / "1"
    whole = read_all(folder)
    damage(harness, 1)
    harness.run()
    assert read_all(folder) == whole
    harness.change(steps=2)
    harness.run()
    assert len(harness.chain.hashes) == 3


@pytest.mark.parametrize(
    "settings", [{}, {"lora": {"rank": 2}, "optim": {"learning_rate": 5e-3}}], ids=["weights", "adapters"]
)
def test_run__home_is_lost__continues_from_a_copy_of_the_newest_policy(
    settings: dict[str, Any], build_harness: Build
) -> None:
    harness = build_harness(steps=1, **settings)
    harness.run()
    copied = copy_policy(harness, 1)
    shutil.rmtree(harness.config.home)
    harness.config.home.mkdir()
    harness.change(steps=2, model={"path": str(copied)}, initial_step=1)
    harness.run()
    assert len(set(harness.chain.hashes)) == 3
    assert read_all(harness.config.home / "exports" / "1") == read_all(copied)
    assert harness.coordinator.claims == [0, 1]


@pytest.mark.parametrize("is_named", [True, False])
def test_run__another_policy_is_named__is_refused_and_touches_nothing(is_named: bool, build_harness: Build) -> None:
    harness = build_harness()
    harness.run()
    copied = copy_policy(harness, 1)
    shutil.rmtree(harness.config.home / "checkpoints")
    before = read_all(harness.config.home / "exports"), read_all(harness.config.origin_root)
    harness.change(model={"path": str(copied) if is_named else None}, initial_step=2)
    with pytest.raises(OperatorError, match="another_policy"):
        harness.run()
    assert (read_all(harness.config.home / "exports"), read_all(harness.config.origin_root)) == before
    assert list((harness.config.home / "checkpoints").iterdir()) == []


def test_run__copy_of_a_policy_that_is_not_published_yet__is_refused(build_harness: Build) -> None:
    harness = build_harness(steps=1)
    harness.run()
    shutil.rmtree(harness.config.home / "checkpoints")
    harness.change(model={"path": str(copy_policy(harness, 1))}, initial_step=2)
    with pytest.raises(OperatorError, match="another_policy"):
        harness.run()


def test_run__home_is_lost_and_work_is_of_an_earlier_policy__is_left_out_unless_replayed(
    build_harness: Build,
) -> None:
    harness = build_harness(steps=1)
    harness.run()
    copied = copy_policy(harness, 1)
    shutil.rmtree(harness.config.home)
    harness.config.home.mkdir()
    harness.change(steps=3, model={"path": str(copied)}, initial_step=1)
    harness.coordinator.staleness, harness.coordinator.replayed = 1, False
    harness.run()
    updates = [line for line in harness.read_metrics() if line["event"] == "update"]
    assert [(line["batch/left_out"], line["batch/samples"]) for line in updates] == [(2, 0), (0, 32)]
    assert len(harness.chain.hashes) == 4


def test_run__home_is_lost_with_the_reference__says_so(build_harness: Build) -> None:
    harness = build_harness(steps=1)
    harness.run()
    copied = copy_policy(harness, 1)
    shutil.rmtree(harness.config.home)
    harness.config.home.mkdir()
    harness.change(steps=2, model={"path": str(copied)}, initial_step=1, loss={"beta": 0.01})
    with pytest.raises(OperatorError, match=r"no_reference: .*loss.beta"):
        harness.run()


def test_run__kept_policy_is_damaged__its_work_is_left_out_unless_replayed(build_harness: Build) -> None:
    harness = build_harness()
    harness.run()
    damage(harness, 1)
    harness.change(steps=3)
    harness.coordinator.staleness, harness.coordinator.replayed = 1, False
    limit_claims(harness, 2)
    harness.run()
    updates = [line for line in harness.read_metrics() if line["event"] == "update"]
    assert [(line["batch/left_out"], line["batch/samples"]) for line in updates] == [(0, 32), (0, 32), (2, 0)]
    assert harness.coordinator.claims == [0, 1, 2, 2]
    assert len(harness.chain.hashes) == 4


def test_run__reference_is_damaged__says_so_before_it_asks_for_work(build_harness: Build) -> None:
    harness = build_harness(steps=1, loss={"beta": 0.01})
    harness.run()
    damage(harness, 0)
    harness.change(steps=2)
    with pytest.raises(OperatorError, match=r"no_reference: .*exports/0 is damaged or missing, .*loss.beta to 0"):
        harness.run()
    assert harness.coordinator.claims == [0]


def test_run__reference_is_damaged_meanwhile__says_so(build_harness: Build) -> None:
    harness = build_harness(steps=1, loss={"beta": 0.01})
    harness.run()
    harness.change(steps=2)
    original = harness.coordinator.claim_batch

    async def claim_batch(step: int, *, wait_seconds: float) -> Any:
        assert step not in harness.coordinator.claims, "it is claimed once"
        batch = await original(step, wait_seconds=wait_seconds)
        damage(harness, 0)
        return batch

    harness.coordinator.claim_batch = claim_batch
    with pytest.raises(OperatorError, match=r"no_reference: .*exports/0 is damaged .*loss.beta to 0"):
        harness.run()
