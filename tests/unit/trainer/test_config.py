"""Defaults and refused values of the settings, and that the shipped files load."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from covey.errors import OperatorError
from covey.runtime.flat_tables import flatten
from trainer.config import ModelSection, TrainerConfig

pytestmark = pytest.mark.unit

CONFIGS = Path(__file__).parents[3] / "configs"
PLACE = {"home": "h", "pool": 1, "deployment": "d.json", "key_file": "k", "origin_root": "o"}


def load(values: dict[str, Any]) -> TrainerConfig:
    return TrainerConfig.load(None, PLACE | values, {})


def test_defaults__objective__clips_and_corrects_as_covey_1() -> None:
    config = load({})
    loss = config.loss
    assert (loss.epsilon, loss.highest_ratio, loss.delta) == (0.2, 1.2, 4.0)
    assert (loss.scale_rewards, loss.loss_type, loss.old_policy) == ("group", "dapo", "behaviour")
    assert (loss.importance_sampling_mode, loss.importance_sampling_clip_max) == ("token_truncate", 5.0)
    assert (loss.beta, loss.entropy_coef) == (0, 0)
    assert config.steps is None


@pytest.mark.parametrize("name", ["trainer.toml", "intellect2.toml"])
def test_load__shipped_file__is_accepted(name: str) -> None:
    assert load(tomllib.loads((CONFIGS / name).read_text())).loss.delta == 4.0


def test_load__local_file__holds_the_demos_values() -> None:
    config = load(tomllib.loads((CONFIGS / "trainer.toml").read_text()))
    optim = config.optim
    assert (optim.learning_rate, optim.betas, optim.weight_decay) == (5e-4, (0.9, 0.99), 0.0)
    assert (optim.max_grad_norm, optim.warmup_steps) == (1.0, 0)
    assert (config.loss.beta, config.loss.entropy_coef, optim.updates_per_step) == (0, 0, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": {"delta": 1.2}},
        {"loss": {"epsilon_high": 0.5, "delta": 1.5}},
        {"loss": {"epsilon": 0}},
        {"optim": {"betas": (0.9, 1.0)}},
        {"optim": {"learning_rate": 0}},
        {"optim": {"learning_rate": float("inf")}},
        {"loss": {"beta": -1}},
        {"loss": {"loss_type": "rows"}},
        {"loss": {"preset": "dapo@9"}},
        {"loss": {"importance_sampling_clip_max": 0.5}},
        {"steps": -1},
        {"optim": {"learning_rat": 1e-3}},
    ],
)
def test_load__wrong_value__is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OperatorError, match="bad_settings"):
        load(wrong)


def test_load__local_file__is_what_the_demo_trains_with() -> None:
    from covey.demo.demo_network import LEARNING

    values = tomllib.loads((CONFIGS / "trainer.toml").read_text())
    assert values["optim"] == values["optim"] | LEARNING["optim"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("learning_rate", "optim.learning_rate"), ("row_tokens", "model.seq_len"), ("lora_rank", "lora.rank"),
        ("initial_policy", "model.path"), ("clip_epsilon", "loss.epsilon"), ("keep_checkpoints", "ckpt.keep"),
        ("log.level", "log_level"), ("log.alarms.window", "alarms"),
    ],
)  # fmt: skip
def test_load__setting_by_its_old_name__is_refused_with_the_new_one(old: str, new: str, tmp_path: Path) -> None:
    message = f"{'log.alarms' if 'alarms' in old else old}: old name; use {new} instead"
    file = tmp_path / "trainer.toml"
    file.write_text(f"{old} = 1\n")
    for source, values, environment in (
        (file, PLACE, {}), (None, PLACE | {old: 1}, {}), (None, PLACE, {f"COVEY_{old.replace('.', '__').upper()}": "1"})
    ):  # fmt: skip
        with pytest.raises(OperatorError, match=message):
            TrainerConfig.load(source, values, environment)


def test_renamed__every_new_name__is_a_setting_and_no_old_name_is() -> None:
    settings = {*TrainerConfig.model_fields, *flatten(load({}).model_dump())}
    assert set(TrainerConfig.renamed.values()) <= settings
    assert not TrainerConfig.renamed.keys() & settings


@pytest.mark.parametrize(
    ("section", "longest", "expected"),
    [
        (ModelSection(), 72, (1024, 8)),
        (ModelSection(), 2049, (2176, 3)),  # 17 x 128, and 3 x 2176 <= 8192
        (ModelSection(), 32768, (32768, 1)),
        (ModelSection(seq_len=4096), 2049, (4096, 2)),
        (ModelSection(seq_len=128, micro_batch_size=5), 128, (128, 5)),
    ],
)
def test_choose_seq_len__lengths_of_samples__give_what_is_not_set(
    section: ModelSection, longest: int, expected: tuple[int, int]
) -> None:
    assert (section.choose_seq_len(longest), section.choose_micro_batch_size(longest)) == expected


def test_choose_seq_len__row_shorter_than_a_sample__is_refused() -> None:
    with pytest.raises(OperatorError, match=r"short_rows: model\.seq_len is 127, .* 128 tokens"):
        ModelSection(seq_len=127).choose_micro_batch_size(128)
