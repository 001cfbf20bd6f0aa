"""TRL's side of the spelling task has the settings and the prompts of Covey's."""

import pytest
from transformers import AutoTokenizer

from benchmarks.training.local_run_peer import SpellingStamps, build_dataset, build_settings
from benchmarks.training.spelling_task import SpellingConfig, SpellingRun
from covey.model.prompts import RAW, encode_prompt
from covey.model.tiny import tiny_folder

pytestmark = pytest.mark.unit
CONFIG = SpellingConfig(rows=512, steps=20, every=4, timed=12)


def test_build_settings__both_runs__differ_in_steps_and_evaluations_alone() -> None:
    timed = build_settings(CONFIG, seed=3, folder="f", is_timed=True)
    learning = build_settings(CONFIG, seed=3, folder="f", is_timed=False)
    changed = {name for name in learning if timed.get(name) != learning[name]}
    assert (timed["max_steps"], learning["max_steps"]) == (12, 20)
    assert changed - {"max_steps"} == {
        "eval_strategy", "eval_steps", "eval_on_start", "per_device_eval_batch_size", "num_generations_eval",
    }  # fmt: skip
    assert (learning["per_device_train_batch_size"], learning["num_generations"]) == (128, 8)
    assert (learning["per_device_eval_batch_size"], learning["num_generations_eval"]) == (64, 1)
    assert (learning["learning_rate"], learning["temperature"], learning["max_completion_length"]) == (5e-4, 1.0, 8)
    assert learning["scale_rewards"] == "group"


def test_build_dataset__prompt__has_the_tokens_of_covey_s_raw_prompt() -> None:
    (row,) = build_dataset([{"prompt": "Spell sun", "answer": "nus"}])
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder())
    assert tokenizer(text=row["prompt"])["input_ids"] == encode_prompt(tokenizer, "Spell sun", format=RAW)


def test_spelling_stamps__log_of_an_evaluation__is_recorded_and_others_are_not() -> None:
    run = SpellingRun()
    run.begin()
    state = type("State", (), {"global_step": 8})()
    stamps = SpellingStamps(run, is_timed=False)
    stamps.on_step_end()
    stamps.on_log(None, state, None, logs={"reward": 0.9})
    stamps.on_log(None, state, None, logs={"eval_reward": 0.5})
    SpellingStamps(run, is_timed=True).on_step_end()
    assert [(step, reward) for step, reward, *_ in run.evaluations] == [(8, 0.5)]
    assert len(run.stamps) == 1
