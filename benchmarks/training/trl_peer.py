"""TRL's `GRPOTrainer` on the copying task, in a process of its own; started by `benchmarks.training.throughput`.

What is not TRL's default, and why that is fair: one sum over tokens (`dapo`) and advantages that no deviation divides,
because there both sides compute the same numbers; float32, as ours; no gradient checkpointing, which buys memory with
time; no files, logs and bars.  What suits it best stays: the fused optimizer, a cache while it generates, old
log-probabilities from the pass of the update itself, the fused head.
"""

import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from datasets import Dataset  # type: ignore[import-untyped]
from transformers import PrinterCallback, TrainerCallback

from benchmarks.training import copy_task
from benchmarks.training.copy_task import CopyTaskConfig, RunRecorder, TrainingRun


class Stamps(TrainerCallback):
    """Begins a recorder when the trainer has all that it learns with, and tells it when steps end."""

    def __init__(self, recorders: list[RunRecorder]) -> None:
        self._recorders = recorders

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if not self._recorders:
            self._recorders.append(RunRecorder())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._recorders[0].stamp()


def build_settings(case: CopyTaskConfig, seed: int, folder: str) -> dict[str, Any]:
    """Those of a GRPOConfig: the same learning as ours."""
    return {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": False,
        "seed": seed,
        "max_steps": case.steps,
        "per_device_train_batch_size": case.batch,
        "num_generations": case.siblings,
        "max_completion_length": copy_task.LENGTH,
        "temperature": 1.0,
        "beta": 0.0,
        "epsilon": copy_task.EPSILON,
        "delta": copy_task.DELTA,
        "loss_type": "dapo",
        "scale_rewards": "none",
        "learning_rate": case.learning_rate,
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


def learn(sizes: dict[str, Any], seed: int) -> TrainingRun:
    """All steps of a `CopyTaskConfig`."""
    sys.modules["vllm"] = None  # type: ignore[assignment]  # TRL loads it wherever it is: 150 MB that serve nothing here
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    case = CopyTaskConfig(**sizes)
    tokenizer, model = copy_task.build_tokenizer(), copy_task.build_model(case, seed)
    prompts = copy_task.draw_prompts(seed, case.groups * case.steps)
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
            args=GRPOConfig(**build_settings(case, seed, folder)),
            train_dataset=rows,
            processing_class=tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Stamps(recorders))
        trainer.train()
    return recorders[0].build_run()
