"""The section on saving: which updates are timed."""

import pytest

from benchmarks.gpu.random_models import SMALL, build_model
from benchmarks.gpu.save_speed import STEPS, time_during
from benchmarks.gpu.section_run import SectionRun
from benchmarks.training.utilisation import OBJECTIVE, OPTIMISER
from trainer.algorithm.forward import PackingConfig
from trainer.algorithm.learner import Learner

pytestmark = pytest.mark.unit


class ApartLearner(Learner):
    """A learner whose steps are written from copies, as on a GPU."""

    @property
    def is_saved_apart(self) -> bool:
        return True


def build_learner(run: SectionRun, kind: type[Learner]) -> Learner:
    shape = PackingConfig(seq_len=64, micro_batch_size=1, compute_dtype="bfloat16")
    return kind(build_model(run, SMALL), optimiser=OPTIMISER, objective=OBJECTIVE, shape=shape)


def test_time_during__nothing_is_copied__the_write_ends_first(run: SectionRun) -> None:
    events: list[str] = []
    learner = build_learner(run, Learner)
    seconds = time_during(run, learner, lambda: events.append("update"), lambda: events.append("write"))
    assert (events, len(seconds)) == (["write", "update"], 1)


def test_time_during__a_write_that_lasts__is_not_waited_for(run: SectionRun) -> None:
    updates: list[int] = []

    def write() -> None:
        while len(updates) < 3:
            pass

    seconds = time_during(run, build_learner(run, ApartLearner), lambda: updates.append(1), write)
    assert 3 <= len(seconds) == len(updates) <= STEPS


def test_time_during__a_write_that_fails__is_raised(run: SectionRun) -> None:
    def write() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        time_during(run, build_learner(run, ApartLearner), lambda: None, write)
