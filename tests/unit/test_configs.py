"""The shipped settings of the paper's run hold the paper's numbers, and its two files fit each other."""

import re
import tomllib
from pathlib import Path

import pytest

from covey.cli.account import read_pool_file
from covey.environments.base import EnvironmentSpec, Prompt
from covey.environments.registry import load
from trainer.config import TrainerConfig

pytestmark = pytest.mark.unit
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
PLACES = {"home": "h", "pool": 1, "deployment": "d.json", "key_file": "k", "origin_root": "o"}


def test_intellect2__trainer_and_pool__are_the_papers() -> None:
    trainer = TrainerConfig.load(CONFIGS / "intellect2.toml", PLACES, {})
    _, _, pool = read_pool_file(CONFIGS / "intellect2-pool.toml", "0x" + "00" * 20)
    rollouts = pool.groups_per_step * pool.group_size
    assert (pool.group_size, pool.groups_per_step, rollouts, rollouts // trainer.updates_per_step) == (
        16,
        256,
        4096,
        512,
    )
    assert (trainer.learning_rate, trainer.betas, trainer.weight_decay) == (3e-7, (0.9, 0.99), 0.01)
    assert (trainer.warm_up_updates, trainer.gradient_clip) == (25, 0.1)
    assert (trainer.clip_epsilon, trainer.clip_delta, trainer.old_policy) == (0.2, 4.0, "recompute")
    assert (trainer.kl_coefficient, trainer.kl_estimator, trainer.entropy_coefficient) == (0.001, "k3", 1e-4)
    assert pool.model.longest == trainer.row_tokens == 32768
    assert (trainer.activation_checkpointing, trainer.evaluation_every) == (True, 0)  # or the device is too small
    assert pool.max_staleness == 2
    assert (pool.online_filter, pool.max_groups_per_step) == (True, 1024)
    assert pool.environment.options["targets"] == [1000, 2000, 3000, 4000]
    assert pool.environment.options["alpha"] == 0.0003


def test_intellect2__a_task_of_the_pool__fits_what_it_may_hand_in() -> None:
    _, _, pool = read_pool_file(CONFIGS / "intellect2-pool.toml", "0x" + "00" * 20)
    assert pool.needed_submission_bytes <= pool.max_submission_bytes
    assert pool.rollouts_per_task == 16


@pytest.mark.parametrize(
    "options",
    [
        tomllib.loads((CONFIGS / "intellect2-pool.toml").read_text())["params"]["environment"]["options"],
        {"name": "spell_backward"},
        {"name": "gcd"},
    ],
    ids=lambda options: options["name"],
)
def test_intellect2__thinking_models__earn_nothing_as_the_first_lines_say(options: dict[str, object]) -> None:
    head = (CONFIGS / "intellect2-pool.toml").read_text().partition("[terms]")[0]
    assert "Thinking models earn nothing here" in head
    environment = load(EnvironmentSpec(kind="reasoning_gym", options=options))
    for draw in range(3):
        prompt = environment.prompt(draw)
        answer, length = str(environment.source._dataset[prompt.verification["item"]]["answer"]), prompt.target or 9

        def grade(text: str, prompt: Prompt = prompt, length: int = length) -> float:
            return environment.grade(prompt.build_reply(text, finished=True, tokens=length)).reward

        assert grade(answer) == 1.0
        assert grade(f"<think>Let me see.</think><answer>{answer}</answer>") == 0.0


def test_pool__windows__pay_after_minutes_and_what_the_comments_name_is_lawful_and_long(tmp_path: Path) -> None:
    shipped = CONFIGS / "pool.toml"
    terms, _, params = read_pool_file(shipped, "0x" + "00" * 20)
    assert params.epoch_seconds + terms.challenge_window + terms.veto_window == 40
    text, count = re.subn(r"(?m)^(\w+) = \d+( *# public: (\d+))", r"\1 = \3\2", shipped.read_text())
    assert count == 6
    (tmp_path / "public.toml").write_text(text)
    public, _, public_params = read_pool_file(tmp_path / "public.toml", "0x" + "00" * 20)
    assert (public.challenge_window, public.veto_window, public.unbond_window) == (3600, 86400, 604800)
    assert (public.epoch_length, public_params.epoch_seconds) == (1800, 3600)
    assert public_params.verification.draw_seconds == 120
