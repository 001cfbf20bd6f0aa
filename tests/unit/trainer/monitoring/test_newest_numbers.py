import pytest

from covey.runtime.prometheus import ReadOnRequest, build_registry
from trainer.monitoring.newest_numbers import NewestNumbers

pytestmark = pytest.mark.unit


def test_write__updates_and_evaluations__are_the_newest_by_name():
    numbers = NewestNumbers()
    registry = build_registry(ReadOnRequest(numbers.read))
    assert registry.get_sample_value("covey_trained_step") == -1
    numbers.write("update", 2, {"reward/mean": 0.25, "optim/grad_norm": 3.0})
    numbers.write("update", 3, {"reward/mean": 0.5})
    numbers.write("evaluation", 9, {"reward": 0.75, "dataset": "gsm8k"})
    numbers.write("alarm", 9, {"value": 1.0})
    samples = [sample for family in registry.collect() for sample in family.samples if sample.name == "covey_training"]
    assert {sample.labels["name"]: sample.value for sample in samples} == {
        "reward/mean": 0.5,
        "optim/grad_norm": 3.0,
        "evaluation/reward": 0.75,
    }
    assert registry.get_sample_value("covey_trained_step") == 3
