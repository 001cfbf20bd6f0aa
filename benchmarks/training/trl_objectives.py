"""TRL's own advantages, importance weights and loss, for a separate process.

A `GRPOTrainer` is built, and only what needs a model is replaced: generation, grading and log-probabilities return the
values of the batch. `_generate_and_score_completions` and `_compute_loss` are TRL's own, in float64.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.training.objective_cases import LONGEST, SIBLINGS, ScoredCompletion
from benchmarks.training.objective_reference import ENTROPY
from covey.model.policy_files import load_model, load_tokenizer
from covey.model.tiny import tiny_folder
from trainer.algorithm.loss_settings import LossSettings

FILLER = 7
"""Token id that ends no completion."""
MODES = {"icepop": "token_mask"}
"""TRL's names of modes, where they differ."""


def compute_all(
    batches: Sequence[Sequence[Mapping[str, Any]]], cases: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[tuple[float, list[float]]]]:
    """Return TRL's loss and gradient of each case on each batch. All arguments are given by their fields."""
    sys.modules["vllm"] = None  # type: ignore[assignment]  # TRL would import vLLM if it is installed
    torch.set_default_dtype(torch.float64)
    parsed = [
        [ScoredCompletion(**{key: _freeze(value) for key, value in each.items()}) for each in rows] for rows in batches
    ]
    with tempfile.TemporaryDirectory() as folder:
        return {
            name: [_compute(rows, LossSettings.model_validate(fields), folder) for rows in parsed]
            for name, fields in cases.items()
        }


def _freeze(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _grade_nothing(completions: Sequence[str], **_: Any) -> list[float | None]:
    return [0.0] * len(completions)


def _build_trainer(settings: LossSettings, batch: int, folder: str) -> Any:
    """Build a trainer with the settings of a case."""
    from datasets import Dataset  # type: ignore[import-untyped]
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    arguments = GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, report_to=[], num_generations=SIBLINGS,
        per_device_train_batch_size=batch, max_completion_length=LONGEST, loss_type=settings.loss_type,
        epsilon=settings.epsilon, epsilon_high=settings.epsilon_high, delta=settings.delta,
        scale_rewards=settings.scale_rewards, importance_sampling_level=settings.importance_sampling_level,
        mask_truncated_completions=settings.mask_truncated_completions,
        off_policy_mask_threshold=settings.mask_threshold if settings.mask == "opsm" else None,
        use_bias_correction_kl=settings.kl_estimator != "k3",
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=load_model(tiny_folder(), "float32"),
        reward_funcs=_grade_nothing,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * batch),
        processing_class=load_tokenizer(tiny_folder()),
    )
    trainer.beta = settings.beta  # given to it, it would look for a reference model by name
    trainer.current_gradient_accumulation_steps = 1
    mode = settings.importance_sampling_mode
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = settings.is_decoupled
    trainer.vllm_importance_sampling_mode = MODES.get(mode, mode)
    trainer.vllm_importance_sampling_clip_max = settings.importance_sampling_clip_max
    trainer.vllm_importance_sampling_clip_min = settings.importance_sampling_clip_min
    return trainer


def _compute(batch: Sequence[ScoredCompletion], settings: LossSettings, folder: str) -> tuple[float, list[float]]:
    trainer = _build_trainer(settings, len(batch), folder)
    end = trainer.eos_token_ids[0]
    tokens = [[*[FILLER] * (len(each.current) - 1), end if each.finished else FILLER] for each in batch]
    width = max(map(len, tokens))

    def pad(name: str) -> Tensor:
        return torch.tensor([[*getattr(each, name), *[0.0] * (width - len(each.current))] for each in batch])

    old = pad("start" if settings.is_decoupled else "sampler")
    reference, live = pad("reference"), pad("current").requires_grad_()
    current = old

    def predict(model: Any, *_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
        return (reference if model is trainer.ref_model else current), torch.full_like(old, ENTROPY), None

    trainer.ref_model = object()
    trainer._get_per_token_logps_and_entropies = predict
    trainer._calculate_rewards = lambda *_, **__: torch.tensor([[each.reward] for each in batch])
    sampled = [list(each.sampler) for each in batch] if settings.is_decoupled else None
    trainer._generate = lambda prompts: (
        [[FILLER]] * len(batch), tokens, None, [""] * len(batch), sampled, {}, None, None
    )  # fmt: skip
    trainer.model.train()
    trainer.args.steps_per_generation = 2  # so that it keeps the log-probabilities of the policy that sampled
    inputs = trainer._generate_and_score_completions([{"prompt": "a"}] * len(batch))
    trainer.args.steps_per_generation = 1
    current = live
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    assert live.grad is not None
    slopes = [value for row, each in zip(live.grad.tolist(), batch, strict=True) for value in row[: len(each.current)]]
    return loss.item(), slopes
