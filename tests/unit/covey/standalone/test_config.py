"""Settings of a run on one machine."""

from pathlib import Path

import pytest

from covey.errors import OperatorError
from covey.standalone.config import TrainConfig

pytestmark = pytest.mark.unit


def test_load__sources__a_section_can_be_set_in_each(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text('steps = 7\n[data]\ndataset = "rows.jsonl"\n[optim]\nlearning_rate = 1e-5\nwarmup_steps = 3\n')
    environment = {"COVEY_OPTIM__WARMUP_STEPS": "4", "COVEY_SAMPLING__GROUP_SIZE": "16"}
    config = TrainConfig.load(file, {"optim.betas": "0.9,0.95", "sampling.group_size": None}, environment)
    assert (config.steps, config.data.dataset) == (7, tmp_path / "rows.jsonl")
    assert (config.optim.learning_rate, config.optim.warmup_steps) == (1e-5, 4)
    assert (config.optim.betas, config.sampling.group_size) == ((0.9, 0.95), 16)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"optim.learning_rat": 1}, "optim.learning_rat: unknown name; did you mean learning_rate?"),
        ({"optim.learning_rate": "x"}, "optim.learning_rate: Input should be a valid number"),
        ({"optin.learning_rate": 1}, "optin: unknown name; did you mean optim?"),
        ({"steps": 0}, "steps: Input should be greater"),
    ],
)
def test_load__wrong_value__is_refused_by_name(values, text):
    with pytest.raises(OperatorError) as caught:
        TrainConfig.load(None, values, {})
    assert (caught.value.code, text in caught.value.message) == ("bad_settings", True), caught.value.message
