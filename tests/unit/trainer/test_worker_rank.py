"""A rank whose settings differ from rank 0's uses rank 0's settings for training."""

from pathlib import Path
from typing import Any

import pytest

from covey.protocol.params import EnvironmentParams, ModelParams, PoolParams, TrainingParams
from covey.standalone.config import TrainConfig
from trainer.config import TrainerConfig
from trainer.factories import decode_plan, encode_plan

pytestmark = pytest.mark.unit

PARAMS = PoolParams(
    name="test",
    environment=EnvironmentParams(kind="reasoning_gym"),
    model=ModelParams(max_prompt_tokens=64),
    group_size=4,
)
PLACES = ("home", "deployment", "key_file", "origin_root")


def build_config(home: str, **changes: Any) -> TrainerConfig:
    return TrainerConfig.model_validate(dict.fromkeys(PLACES, home) | {"pool": 1} | changes)


def test_decode_plan__run_on_one_machine__keeps_its_own_class_and_places() -> None:
    leading = TrainConfig.load(None, {"home": "/a", "optim.learning_rate": 2e-5, "data.dataset": "/a/rows"}, {})
    config = TrainConfig.load(None, {"home": "/b", "model.path": "/b/model", "eval.every": 3}, {})
    decoded, _ = decode_plan(encode_plan(leading, PARAMS), config)
    assert (decoded.home, decoded.model.path, decoded.data.dataset) == (Path("/b"), "/b/model", None)
    assert (decoded.optim.learning_rate, decoded.eval.every) == (2e-5, 10)


def test_decode_plan__rank_with_other_settings__takes_rank_0s_and_keeps_its_places() -> None:
    leading = build_config(
        "/a", optim={"learning_rate": 1e-4, "betas": (0.8, 0.9)}, loss={"preset": "dapo@1", "beta": 0.1}, seed=5,
        alarms={"window": 3}, device="cuda:0", model={"path": "/a/model", "seq_len": 77},
    )  # fmt: skip
    own: dict[str, Any] = {"threads": 3, "device": "cuda:7", "keep_policies": 9}
    text = encode_plan(leading, PARAMS)
    config = build_config(
        "/b", optim={"learning_rate": 9.0}, loss={"old_policy": "recompute"}, lora={"rank": 4},
        model={"path": "/b/model", "compile": True}, **own,
    )  # fmt: skip
    decoded, params = decode_plan(text, config)
    own["model"] = leading.model.model_copy(update={"path": "/b/model"})
    assert decoded == leading.model_copy(update=own | dict.fromkeys(PLACES, Path("/b")))
    assert dict(params) == {name: getattr(PARAMS, name) for name in TrainingParams.model_fields}
    assert '"/a"' not in text, "the places of a machine must not reach other machines"


def test_decode_plan__rank_without_a_model__takes_the_one_that_rank_0_has_found() -> None:
    leading = TrainConfig.load(None, {"home": "/a", "model.path": "/a/policies/3"}, {})  # as --from-pool sets it
    decoded, _ = decode_plan(encode_plan(leading, PARAMS), TrainConfig.load(None, {"home": "/a"}, {}))
    assert decoded.model.path == "/a/policies/3"
