"""TRL's side: that it learns as Covey's does, and when its recorder begins."""

import pytest

from benchmarks.training import copy_task
from benchmarks.training.copy_task import SMALL, RunRecorder
from benchmarks.training.trl_peer import StepStamps, build_settings

pytestmark = pytest.mark.unit


def test_build_settings__a_config__has_the_numbers_of_the_copying_task() -> None:
    settings = build_settings(SMALL, 3, "folder")
    assert (settings["seed"], settings["max_steps"], settings["output_dir"]) == (3, SMALL.steps, "folder")
    assert settings["per_device_train_batch_size"] == SMALL.groups * SMALL.siblings
    assert (settings["num_generations"], settings["max_completion_length"]) == (SMALL.siblings, copy_task.LENGTH)
    assert (settings["epsilon"], settings["delta"]) == (copy_task.EPSILON, copy_task.DELTA)
    assert (settings["adam_beta1"], settings["adam_beta2"]) == copy_task.BETAS
    assert settings["max_grad_norm"] == copy_task.CLIP
    assert (settings["beta"], settings["weight_decay"], settings["scale_rewards"]) == (0.0, 0.0, "none")


def test_step_stamps__two_steps__begin_one_recorder_and_end_two_steps() -> None:
    recorders: list[RunRecorder] = []
    stamps = StepStamps(recorders)
    for reward in (0.25, 0.75):
        stamps.on_step_begin()
        recorders[0].add([reward])
        stamps.on_step_end()
    (recorder,) = recorders
    run = recorder.build_run()
    assert run.rewards == [0.25, 0.75]
    assert len(run.wall) == 2
