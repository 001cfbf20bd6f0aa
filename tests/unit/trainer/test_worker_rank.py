"""A rank whose settings differ from rank 0's uses rank 0's settings for training."""

from pathlib import Path
from typing import Any

import pytest

from covey.protocol.params import EnvironmentParams, ModelParams, PoolParams
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


def test_decode_plan__rank_with_other_settings__takes_rank_0s_and_keeps_its_places() -> None:
    leading = build_config(
        "/a", learning_rate=1e-4, betas=(0.8, 0.9), seq_len=77, kl_coef=0.1, alarms={"window": 3}, seed=5,
        device="cuda:0", initial_policy="/a/model",
    )  # fmt: skip
    own: dict[str, Any] = {"threads": 3, "device": "cuda:7", "initial_policy": "/b/model"}
    text = encode_plan(leading, PARAMS)
    config = build_config("/b", learning_rate=9.0, old_policy="recompute", lora_rank=4, **own)
    decoded, params = decode_plan(text, config)
    assert decoded == leading.model_copy(update=own | dict.fromkeys(PLACES, Path("/b")))
    assert params == PARAMS
    assert "/a" not in text, "paths of a machine must not reach other machines"
