"""TRL's `GRPOTrainer` on the spelling task, for a separate process.

Settings are those of `trl_peer`, which serve TRL best, with advantages that are divided by their deviation. Evaluations
are TRL's own, with one completion per held-out question.
"""

import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-untyped]
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback

from benchmarks.training import spelling_task, trl_peer
from benchmarks.training.copy_task import CopyTaskConfig
from benchmarks.training.spelling_task import MAX_TOKENS, SpellingConfig, SpellingRun
from covey.model.tiny import tiny_folder

EVALUATION_BATCH = 128
"""Number of completions that an evaluation generates together, as many as in a step."""


class SpellingStamps(TrainerCallback):
    """Callback that records ends of steps and results of evaluations."""

    def __init__(self, run: SpellingRun, *, is_timed: bool) -> None:
        self._run, self._is_timed = run, is_timed

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self._is_timed:
            self._run.stamp()

    def on_log(self, args: Any, state: Any, control: Any, **values: Any) -> None:
        if "eval_reward" in (logs := values.get("logs") or {}):
            self._run.add_evaluation(state.global_step, logs["eval_reward"])


def build_settings(config: SpellingConfig, *, seed: int, folder: str, is_timed: bool) -> dict[str, Any]:
    """Build the arguments of a GRPOConfig that learns as Covey's side does."""
    shape = CopyTaskConfig(
        name="", hidden=0, layers=0, timed=0, steps=config.timed if is_timed else config.steps,
        learning_rate=config.learning_rate, groups=config.groups, siblings=config.siblings,
    )  # fmt: skip
    evaluation = {
        "eval_strategy": "steps", "eval_steps": config.every, "eval_on_start": True,
        "per_device_eval_batch_size": min(EVALUATION_BATCH, config.held_out), "num_generations_eval": 1,
    }  # fmt: skip
    own = {"max_completion_length": MAX_TOKENS, "scale_rewards": "group"}
    return trl_peer.build_settings(shape, seed, folder) | own | ({} if is_timed else evaluation)


def learn(fields: dict[str, Any], rows_file: str, seed: int) -> SpellingRun:
    """Run both runs of a `SpellingConfig`, which is given by its fields."""
    sys.modules["vllm"] = None  # type: ignore[assignment]  # TRL would import vLLM if it is installed: 150 MB without use here
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    torch.set_num_threads(1)
    config, run = SpellingConfig(**fields), SpellingRun()
    training, held_out = spelling_task.split_rows(spelling_task.read_rows(rows_file))

    def grade(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float | None]:
        return [
            spelling_task.compute_reward(each, {"answer": text}) for each, text in zip(completions, answer, strict=True)
        ]

    for is_timed in (True, False):
        run.begin()
        tokenizer = AutoTokenizer.from_pretrained(tiny_folder())
        model = AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.float32)
        with tempfile.TemporaryDirectory() as folder:
            settings = build_settings(config, seed=seed, folder=folder, is_timed=is_timed)
            trainer = GRPOTrainer(
                model=model,
                reward_funcs=grade,
                args=GRPOConfig(**settings | {"shuffle_dataset": True}),
                train_dataset=build_dataset(training),
                eval_dataset=None if is_timed else build_dataset(held_out),
                processing_class=tokenizer,
            )
            trainer.remove_callback(PrinterCallback)
            trainer.add_callback(SpellingStamps(run, is_timed=is_timed))
            trainer.train()
    return run.finish()


def build_dataset(rows: Sequence[dict[str, str]]) -> Dataset:
    """Build a data set whose prompts are the texts of Covey's raw prompts."""
    return Dataset.from_list([{"prompt": f"<bos>{row['prompt']}\n", "answer": row["answer"]} for row in rows])
