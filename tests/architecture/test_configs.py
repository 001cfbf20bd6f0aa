"""The shipped settings of the paper's run contain the paper's numbers, and its two files are consistent."""

import re
from pathlib import Path

import pytest

from covey.console.account import read_pool_file
from covey.environments.registry import load
from covey.errors import OperatorError
from covey.network.entry import get_spec
from covey.tasks.dataset import open_folder
from covey.tasks.examples import build_rows
from tests.fakes.configs import CONFIGS, TOKEN, read_settings, write_intellect2
from tests.fakes.tasks import make_data_set
from trainer.config import TrainerConfig

pytestmark = pytest.mark.unit
PLACES = {"home": "h", "pool": 1, "deployment": "d.json", "key_file": "k", "origin_root": "o"}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks") / "tasks"
    make_data_set(folder, build_rows(120))
    return folder


def test_intellect2__trainer_and_pool__are_the_papers() -> None:
    trainer = TrainerConfig.load(CONFIGS / "intellect2.toml", PLACES, {})
    _, pool = read_settings(CONFIGS / "intellect2-pool.toml")
    rollouts = pool.groups_per_step * pool.group_size
    assert (pool.group_size, pool.groups_per_step, rollouts, rollouts // trainer.optim.updates_per_step) == (
        16,
        256,
        4096,
        512,
    )
    optim = trainer.optim
    assert (optim.learning_rate, optim.betas, optim.weight_decay) == (3e-7, (0.9, 0.99), 0.01)
    assert (optim.warmup_steps, optim.max_grad_norm) == (25, 0.1)
    loss = trainer.loss
    assert (loss.epsilon, loss.delta, loss.old_policy) == (0.2, 4.0, "recompute")
    assert (loss.beta, loss.kl_estimator, loss.entropy_coef) == (0.001, "k3", 1e-4)
    assert pool.model.longest == trainer.model.seq_len == 32768
    assert (trainer.model.activation_checkpointing, trainer.eval.every) == (True, 0)  # or the device is too small
    assert pool.max_staleness == 2
    assert (pool.online_filter, pool.max_groups_per_step) == (True, 1024)
    assert (pool.environment.kind, pool.model.prompt_format) == ("mixture", "chat")
    parts = pool.environment.options["parts"]
    assert [part["kind"] for part in parts] == ["math", "code"]
    assert [part["options"]["targets"] for part in parts] == [[1000, 2000, 3000, 4000]] * 2
    assert [part["options"]["alpha"] for part in parts] == [0.0003] * 2


def test_intellect2__a_task_of_the_pool__fits_what_it_may_hand_in() -> None:
    _, pool = read_settings(CONFIGS / "intellect2-pool.toml")
    assert pool.needed_submission_bytes <= pool.max_submission_bytes
    assert pool.rollouts_per_task == 16


def test_intellect2__thinking_models__are_paid_for_the_answer_after_the_thought(tmp_path: Path, tasks: Path) -> None:
    rows = open_folder(tasks)
    _, _, pool = read_pool_file(write_intellect2(tmp_path, rows.digest), TOKEN, datasets=[tasks])
    environment = load(get_spec(pool), lambda _: rows)
    prompt = next(found for found in map(environment.prompt, range(40)) if found.verification["part"] == 0)
    (truth, *_) = prompt.verification["of_part"]["ground_truth"]
    assert "\\boxed{}" in prompt.text
    assert prompt.text.endswith(f"Think for {prompt.target} tokens before you answer.")

    def grade(text: str, *, tokens: int = prompt.target) -> float:
        return environment.grade(prompt.build_reply(text, finished=True, tokens=tokens)).reward

    assert grade(f"Let me see.</think>It is \\boxed{{{truth}}}.") == 1.0
    assert grade(f"Let me see.</think>It is \\boxed{{{truth}}}.", tokens=prompt.target + 500) == pytest.approx(0.85)
    assert grade(f"It is \\boxed{{{truth}}}.") == 0.0
    assert grade(f"It is \\boxed{{{truth}}}.</think>It is clear.") == 0.0


def test_intellect2__without_its_model__is_refused_with_the_command_that_helps() -> None:
    with pytest.raises(OperatorError, match="no_dataset"):
        read_pool_file(CONFIGS / "intellect2-pool.toml", TOKEN)


def test_pool__windows__pay_after_minutes_and_what_the_comments_name_is_lawful_and_long(tmp_path: Path) -> None:
    shipped = CONFIGS / "pool.toml"
    terms, _, params = read_pool_file(shipped, "0x" + "00" * 20)
    assert params.epoch_seconds + terms.challenge_window + terms.veto_window == 40
    text, count = re.subn(r"(?m)^(\w+) = \d+( *# public: (\d+))", r"\1 = \3\2", shipped.read_text())
    assert count == 6
    (tmp_path / "public.toml").write_text(text)
    public, _, public_params = read_pool_file(tmp_path / "public.toml", "0x" + "00" * 20)
    assert (public.challenge_window, public.veto_window, public.unbond_window) == (86400, 86400, 604800)
    assert (public.epoch_length, public_params.epoch_seconds) == (3600, 3600)
    assert public_params.verification.draw_seconds == 120
