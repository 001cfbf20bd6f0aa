"""A trainer with a checkpoint every third step learns the steps in between again after a crash.

It publishes the policies of an undisturbed run.
"""

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from covey.errors import OperatorError
from covey.protocol.ids import Hash
from trainer.checkpoints import resume
from trainer.checkpoints.checkpoint import Checkpoints, StepFolders

pytestmark = pytest.mark.unit
Build = Callable[..., Any]
STEPS = 4


@pytest.fixture(scope="module")
def straight() -> list[Hash]:
    """Hashes of an undisturbed run with a checkpoint of each step. The first test that needs them fills it."""
    return []


def get_straight(straight: list[Hash], build_harness: Build) -> list[Hash]:
    if not straight:
        harness = build_harness(steps=STEPS, eval={"every": 0})
        harness.run()
        straight.extend(harness.chain.hashes)
    return straight


def crash_before_checkpoint(harness: Any, step: int) -> None:
    """Run until the checkpoint of a step is to be written. The policies before that step are published then."""
    prepare = Checkpoints.prepare

    def die(self: Checkpoints, learner: Any, newest: int, report: Any) -> Callable[[], None]:
        if newest == step:
            raise harness.killed
        return prepare(self, learner, newest, report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "prepare", die)
        with pytest.raises(harness.killed):
            harness.run()


def list_folder(harness: Any, name: str) -> list[str]:
    return sorted(path.name for path in (harness.config.home / name).iterdir())


def test_run__killed_between_checkpoints__learns_the_same_again_without_asking_for_it(
    build_harness: Build, straight: list[Hash]
) -> None:
    harness = build_harness(steps=STEPS, ckpt={"every": 3}, eval={"every": 0})
    crash_before_checkpoint(harness, 3)
    assert (list_folder(harness, "checkpoints"), list_folder(harness, "journal")) == (["0"], ["0", "1"])
    assert len(harness.chain.hashes) == 3
    harness.run()
    assert harness.chain.hashes == get_straight(straight, build_harness)
    assert harness.coordinator.claims == [0, 1, 2, 2, 3]
    assert (list_folder(harness, "checkpoints"), list_folder(harness, "journal")) == (["3", "4"], [])
    events = [(line["event"], line["step"]) for line in harness.read_metrics()]
    assert len(events) == len(set(events)) == STEPS + STEPS + 1


def test_run__many_steps_are_learned_again__only_needed_policies_stay(
    build_harness: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(steps=STEPS, ckpt={"every": 9}, eval={"every": 0})
    crash_before_checkpoint(harness, STEPS)
    kept, repeat = list[list[int]](), resume.repeat_steps

    def repeat_and_list(*args: Any, exports: StepFolders, **named: Any) -> dict[str, float]:
        report = repeat(*args, exports=exports, **named)
        kept.append([*exports.list_steps()])
        return report

    monkeypatch.setattr(resume, "repeat_steps", repeat_and_list)
    harness.run()
    assert kept == [[2, 3]], "policy 3 is the newest, and max_staleness is 1"


@pytest.mark.parametrize("n", [9, 17, 24, 31, 38, 45])
def test_run__killed_at_any_durable_action__ends_in_the_same_policies(
    n: int, build_harness: Build, kill_at: Build, straight: list[Hash]
) -> None:
    expected = get_straight(straight, build_harness)
    harness = build_harness(steps=STEPS, ckpt={"every": 3}, eval={"every": 0})
    kill_at(n)
    with pytest.raises(harness.killed):
        harness.run()
    kill_at(None)
    harness.run()
    assert harness.chain.hashes == expected


def test_run__stopped_between_checkpoints__has_one_of_the_newest_step(build_harness: Build) -> None:
    harness = build_harness(steps=STEPS, ckpt={"every": 3}, eval={"every": 0})
    claim = harness.coordinator.claim_batch

    async def claim_batch(step: int, *, wait_seconds: float) -> Any:
        if step == 2:
            harness.context.stop.set()
            return None
        return await claim(step, wait_seconds=wait_seconds)

    harness.coordinator.claim_batch = claim_batch
    harness.run()
    assert (list_folder(harness, "checkpoints"), list_folder(harness, "journal")) == (["0", "2"], [])


def test_run__other_bits_come_out__names_both_hashes_and_the_advice_works(build_harness: Build) -> None:
    harness = build_harness(steps=STEPS, ckpt={"every": 3}, eval={"every": 0})
    crash_before_checkpoint(harness, 3)
    published, home = list(harness.chain.hashes), harness.config.home
    harness.change(optim={"learning_rate": 4e-4})
    for _ in range(2):
        with pytest.raises(OperatorError) as caught:
            harness.run()
        assert caught.value.code == "policy_not_repeated"
        for part in ("step 0 ", "policy 1 ", published[1], "copy home/exports/2,", "initial_step to 2"):
            assert part in str(caught.value)
    copied = shutil.copytree(home / "exports" / "2", harness.root / "copy")
    shutil.rmtree(home / "checkpoints")
    harness.change(model={"path": str(copied)}, initial_step=2)
    harness.run()
    assert harness.chain.hashes[:3] == published
    assert len(set(harness.chain.hashes)) == STEPS + 1
    assert harness.coordinator.claims == [0, 1, 2, 2, 3]


def test_run__batch_on_disk_is_damaged__is_refused(build_harness: Build) -> None:
    harness = build_harness(steps=STEPS, ckpt={"every": 3}, eval={"every": 0})
    crash_before_checkpoint(harness, 3)
    file = harness.config.home / "journal" / "1"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(OperatorError, match=r"damaged_journal: .*step 1 learned"):
        harness.run()
    file.unlink()
    with pytest.raises(OperatorError, match=r"wrong_checkpoint: the checkpoint of step 1 is behind"):
        harness.run()
