"""Makes `losses.json`: batches with the losses and gradients that TRL's own trainer computes for them.

Run `python -m tests.vectors.losses` after a change of the tiny model, of the batches or of TRL's version.  It runs in a
process of its own, because importing TRL takes seconds and loads what is installed alongside it, vLLM included.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covey.model.policy_files import load_model, load_tokenizer
from covey.model.tiny import tiny_folder
from covey.protocol.policy_record import WEIGHTS_FILE
from tests.fakes.samples import build_samples

PATH = Path(__file__).resolve().parent / "losses.json"
CASES = (
    ("tokens", "bnpo", 0.0, "k3_corrected"),
    ("sequence", "grpo", 0.0, "k3_corrected"),
    ("constant", "dr_grpo", 0.0, "k3_corrected"),
    ("tokens", "bnpo", 1e-4, "k3_corrected"),
    ("tokens", "bnpo", 1e-5, "k3"),
)
"""Our and TRL's names of a normaliser, the coefficient of the divergence, which is large on random tokens, and its
estimator."""
SEEDS = range(3)
SETTINGS = {"epsilon": 0.2, "delta": 4.0, "max_completion_length": 20}
"""TRL's names of the ratio's bounds and of the longest completion."""
LOSS_TOLERANCE, TOLERANCE = 1e-5, 1e-4
"""Largest rounding differences of a loss and of what `measure` returns, which sums up to tens of thousands of float32
values.  Processors round float32 differently, so two computations need not agree to the last bit."""


def hash_model() -> str:
    """Return the SHA-256 of the tiny model's weights, from which all losses are computed."""
    return hashlib.sha256((tiny_folder() / WEIGHTS_FILE).read_bytes()).hexdigest()


def measure(gradient: Tensor) -> list[float]:
    """Return the norm of a gradient and its scalar product with cos(0), cos(1), ...

    The product tells apart gradients of one norm whose elements have other signs or other places.
    """
    flat = gradient.detach().double().flatten()
    return [float(flat.norm()), float(flat @ torch.arange(len(flat)).double().cos())]


def build_batches() -> list[list[dict[str, Any]]]:
    """Return the samples of each seed, of which the loss reads these fields."""
    names = ("prompt", "tokens", "old", "reference", "advantage")
    return [[{name: getattr(sample, name) for name in names} for sample in build_samples(seed=seed)] for seed in SEEDS]


def build_inputs(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Return what TRL's trainer makes of rollouts: prompts padded on the left, completions on the right."""

    def pad(rows: list[tuple[float, ...]], *, left: bool = False, dtype: torch.dtype) -> Tensor:
        width = max(map(len, rows))
        zeros = [(0,) * (width - len(row)) for row in rows]
        padded = [(*zero, *row) if left else (*row, *zero) for zero, row in zip(zeros, rows, strict=True)]
        return torch.tensor(padded, dtype=dtype)

    prompts, tokens = [s["prompt"] for s in samples], [s["tokens"] for s in samples]
    return {
        "prompt_ids": pad(prompts, left=True, dtype=torch.int64),
        "prompt_mask": pad([(1,) * len(row) for row in prompts], left=True, dtype=torch.int64),
        "completion_ids": pad(tokens, dtype=torch.int64),
        "completion_mask": pad([(1,) * len(row) for row in tokens], dtype=torch.int64),
        "old_per_token_logps": pad([s["old"] for s in samples], dtype=torch.float32),
        "ref_per_token_logps": pad([s["reference"] for s in samples], dtype=torch.float32),
        "advantages": torch.tensor([s["advantage"] for s in samples], dtype=torch.float32),
    }


def compute_losses(batches: list[list[dict[str, Any]]], folder: str) -> list[dict[str, Any]]:
    """Return TRL's loss of every case and batch with `measure` of each parameter's gradient."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    losses = []
    for normaliser, loss_type, beta, estimator in CASES:
        trainer = GRPOTrainer(
            model=load_model(tiny_folder(), "float32"),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(
                output_dir=folder, use_cpu=True, bf16=False, report_to=[], beta=0.0, loss_type=loss_type,
                num_generations=2, per_device_train_batch_size=2, use_bias_correction_kl=estimator == "k3_corrected",
                **SETTINGS,
            ),
            train_dataset=Dataset.from_list([{"prompt": "a"}] * 2),
            processing_class=load_tokenizer(tiny_folder()),
        )  # fmt: skip
        trainer.beta = beta  # given to it, it would look for a reference model by name
        trainer.current_gradient_accumulation_steps = 1
        for number, samples in enumerate(batches):
            trainer.model.train().zero_grad()
            loss = trainer.compute_loss(trainer.model, build_inputs(samples))
            loss.backward()
            gradients = {name: measure(each.grad) for name, each in trainer.model.named_parameters()}
            losses.append(
                {
                    "normaliser": normaliser,
                    "loss_type": loss_type,
                    "beta": beta,
                    "kl_estimator": estimator,
                    "batch": number,
                    "loss": loss.item(),
                    "gradients": gradients,
                }
            )
    return losses


def main(path: Path) -> None:
    """Write the file."""
    torch.set_num_threads(1)
    batches = build_batches()
    with tempfile.TemporaryDirectory() as folder:
        losses = compute_losses(batches, folder)
    vectors = {"model": hash_model(), "settings": SETTINGS, "batches": batches, "losses": losses}
    path.write_text(json.dumps(vectors, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else PATH)
