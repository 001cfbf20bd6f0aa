"""The copying task: prompts, rewards, when it counts as learned, and what a run records."""

import pytest
import torch

from benchmarks.isolated_process import read_peak
from benchmarks.training.copy_task import (
    EOS,
    FIRST,
    LARGE,
    LENGTH,
    PAD,
    SMALL,
    SYMBOLS,
    CopyTaskConfig,
    RunRecorder,
    build_model,
    build_tokenizer,
    compute_reward,
    draw_prompts,
    find_step,
)

pytestmark = pytest.mark.unit


def test_tokenizer__text_of_symbols__has_one_token_per_symbol_and_decodes_to_itself() -> None:
    tokenizer = build_tokenizer()
    assert tokenizer("a h c")["input_ids"] == [FIRST, FIRST + 7, FIRST + 2]
    assert tokenizer.decode([FIRST, FIRST + 7, FIRST + 2]) == "a h c"
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (PAD, EOS)
    assert len(tokenizer) == FIRST + len(SYMBOLS)


def test_draw_prompts__equal_seeds__give_equal_prompts_and_a_longer_list_begins_with_the_shorter() -> None:
    prompts = draw_prompts(3, 64)
    assert prompts == draw_prompts(3, 100)[:64]
    assert prompts != draw_prompts(4, 64)
    assert {len(prompt) for prompt in prompts} == {LENGTH}
    assert {token for prompt in prompts for token in prompt} == set(range(FIRST, FIRST + 8))


@pytest.mark.parametrize(
    ("tokens", "reward"),
    [((2, 3, 4, 5), 1.0), ((2, 3, 4, 9), 0.75), ((3, 4, 5, 2), 0.0), ((2, 3, EOS), 0.5), ((), 0.0)],
)
def test_compute_reward__tokens_in_their_places__are_counted(tokens: tuple[int, ...], reward: float) -> None:
    assert compute_reward((2, 3, 4, 5), tokens) == reward


def test_compute_reward__answer_that_ignores_the_prompt__earns_an_eighth_on_average() -> None:
    rewards = [compute_reward(prompt, (FIRST,) * LENGTH) for prompt in draw_prompts(0, 4000)]
    assert sum(rewards) / len(rewards) == pytest.approx(1 / 8, abs=0.01)


def test_find_step__mean_of_a_window__first_reaches_the_target_there() -> None:
    rewards = [0.0, 1.0, 0.5, 1.0, 1.0, 0.0]
    assert find_step(rewards, 0.75, window=2) == 3
    assert find_step(rewards, 1.0, window=2) == 5
    assert find_step(rewards, 1.0, window=3) is None
    assert find_step(rewards[:1], 0.0, window=2) is None


@pytest.mark.parametrize(("config", "parameters"), [(SMALL, 0.13e6), (LARGE, 6e6)])
def test_build_model__any_config__has_its_size_and_equal_seeds_give_equal_weights(
    config: CopyTaskConfig, parameters: float
) -> None:
    model, again, other = (build_model(config, seed) for seed in (1, 1, 2))
    assert model.num_parameters() == pytest.approx(parameters, rel=0.06)
    weights, same, different = (each.lm_head.weight for each in (model, again, other))
    assert torch.equal(weights, same)
    assert not torch.equal(weights, different)


def test_recorder__two_steps__have_mean_rewards_times_and_memory() -> None:
    recorder = RunRecorder()
    for rewards in ([0.0, 1.0], [1.0, 1.0, 0.25]):
        recorder.add(rewards)
        recorder.stamp()
    run = recorder.build_run()
    assert run.rewards == [0.5, 0.75]
    assert len(run.wall) == len(run.cpu) == 2
    assert all(seconds >= 0 for seconds in [*run.wall, *run.cpu])
    assert 10_000_000 < run.baseline <= run.peak <= read_peak()
