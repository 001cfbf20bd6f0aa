"""The two-sided objective against TRL 1.16's own trainer, whose losses are in `tests/vectors/losses.json`."""

import json
from typing import Any

import pytest
from transformers import PreTrainedModel

from covey.model.policy_files import load_model
from covey.model.tiny import tiny_folder
from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from tests.fakes.samples import TWO_SIDED, build_learner, change
from tests.vectors.losses import LOSS_TOLERANCE, PATH, TOLERANCE, hash_model, measure
from trainer.algorithm.batches import build_batch
from trainer.data.samples import Sample

pytestmark = pytest.mark.unit

VECTORS = json.loads(PATH.read_text())
SETTINGS = VECTORS["settings"]
OBJECTIVE = change(TWO_SIDED, epsilon=SETTINGS["epsilon"], delta=SETTINGS["delta"])


@pytest.fixture(scope="module")
def base() -> PreTrainedModel:
    assert hash_model() == VECTORS["model"], "the tiny model has changed: run python -m tests.vectors.losses"
    return load_model(tiny_folder(), "float32")


def read_samples(batch: list[dict[str, Any]]) -> list[Sample]:
    return [
        Sample(
            id=RolloutId(task=TaskId(0), group=GroupId(0), sibling=i),
            policy_version=Step(0),
            prompt=tuple(row["prompt"]),
            tokens=tuple(row["tokens"]),
            reward=0.0,
            advantage=row["advantage"],
            old=tuple(row["old"]),
            reference=tuple(row["reference"]),
        )
        for i, row in enumerate(batch)
    ]


@pytest.mark.parametrize(
    "row",
    VECTORS["losses"],
    ids=lambda row: f"{row['normaliser']}-{row['beta']}-{row['kl_estimator']}-batch-{row['batch']}",
)
def test_update__batch_of_the_vectors__has_the_loss_and_the_gradient_of_trl(
    base: PreTrainedModel, row: dict[str, Any]
) -> None:
    learner = build_learner(base, objective=change(OBJECTIVE, beta=row["beta"], kl_estimator=row["kl_estimator"]))
    metrics = learner.update(
        build_batch(
            read_samples(VECTORS["batches"][row["batch"]]),
            normaliser=row["normaliser"],
            constant=SETTINGS["max_completion_length"],
            keep_all=True,
        )
    )
    assert metrics.clip_ratio > 0.1
    assert metrics.loss == pytest.approx(row["loss"], abs=LOSS_TOLERANCE)
    found = {name: measure(each.grad) for name, each in learner.model.named_parameters() if each.grad is not None}
    assert set(found) == set(row["gradients"])
    for name, values in row["gradients"].items():
        assert found[name] == pytest.approx(values, abs=TOLERANCE), name
