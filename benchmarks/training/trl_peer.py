"""TRL's `GRPOTrainer` on the copying task, for a separate process.

Settings differ from TRL's defaults where that is fair.  One sum over tokens ("dapo") and advantages that are not
divided by their deviation let both sides compute the same numbers.  Both use float32.  Gradient checkpointing, which
saves memory and costs time, is off, and so are files, logs and progress bars.  What serves TRL best stays: the fused
optimizer, the KV cache in generation, old log-probabilities from the pass of the update itself, and the fused head.
"""

import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from datasets import Dataset  # type: ignore[import-untyped]
from transformers import PrinterCallback, TrainerCallback

from benchmarks.training import copy_task
from benchmarks.training.copy_task import CopyTaskConfig, RunRecorder, TrainingRun


class StepStamps(TrainerCallback):
    """Callback that makes a recorder when the first step begins, and records the end of each step."""

    def __init__(self, recorders: list[RunRecorder]) -> None:
        self._recorders = recorders

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if not self._recorders:
            self._recorders.append(RunRecorder())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._recorders[0].stamp()


def build_settings(config: CopyTaskConfig, seed: int, folder: str) -> dict[str, Any]:
    """Build the arguments of a GRPOConfig that learns as Covey's side does."""
    return {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": False,
        "seed": seed,
        "max_steps": config.steps,
        "per_device_train_batch_size": config.batch,
        "num_generations": config.siblings,
        "max_completion_length": copy_task.LENGTH,
        "temperature": 1.0,
        "beta": 0.0,
        "epsilon": copy_task.EPSILON,
        "delta": copy_task.DELTA,
        "loss_type": "dapo",
        "scale_rewards": "none",
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "constant",
        "adam_beta1": copy_task.BETAS[0],
        "adam_beta2": copy_task.BETAS[1],
        "adam_epsilon": copy_task.ADAM_EPSILON,
        "weight_decay": 0.0,
        "max_grad_norm": copy_task.CLIP,
        "gradient_checkpointing": False,
        "shuffle_dataset": False,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def learn(fields: dict[str, Any], seed: int) -> TrainingRun:
    """Run all steps of a `CopyTaskConfig`, which is given by its fields."""
    sys.modules["vllm"] = None  # type: ignore[assignment]  # TRL would import vLLM if it is installed: 150 MB without use here
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    config = CopyTaskConfig(**fields)
    tokenizer, model = copy_task.build_tokenizer(), copy_task.build_model(config, seed)
    prompts = copy_task.draw_prompts(seed, config.groups * config.steps)
    texts = [tokenizer.decode(list(each)) for each in prompts]
    rows = Dataset.from_dict({"prompt": texts, "symbols": [list(each) for each in prompts]})
    recorders: list[RunRecorder] = []

    def grade(
        symbols: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], **_: Any
    ) -> list[float | None]:
        rewards = [copy_task.compute_reward(a, b) for a, b in zip(symbols, completion_ids, strict=True)]
        recorders[0].add(rewards)
        return [*rewards]

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=grade,
            args=GRPOConfig(**build_settings(config, seed, folder)),
            train_dataset=rows,
            processing_class=tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(StepStamps(recorders))
        trainer.train()
    return recorders[0].build_run()
