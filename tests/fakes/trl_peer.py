"""The loss of TRL's own trainer, in a process of its own: `python -m tests.fakes.trl_peer <folder>`.

It writes `losses.json` and the gradients of each case.  Importing it loads what is installed beside it, vLLM included.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from covey.model.files import load_model, load_tokenizer
from covey.model.tiny import tiny_folder
from tests.fakes.samples import build_samples
from trainer.batch import Sample

CASES = {
    "tokens": ("bnpo", 0.0),
    "sequence": ("grpo", 0.0),
    "constant": ("dr_grpo", 0.0),
    "kl": ("bnpo", 1e-5),
}
"""TRL's name of a normaliser and the coefficient of the divergence, which is large on random tokens."""
SEEDS = range(3)
LIMIT = 20
"""Tokens of a completion at most."""


def build_inputs(samples: list[Sample]) -> dict[str, Tensor]:
    """As TRL's trainer makes them of rollouts: prompts padded on the left, completions on the right."""
    before, after = max(len(s.prompt) for s in samples), max(len(s.tokens) for s in samples)

    def pad(rows: list[tuple[float, ...]], width: int, *, left: bool = False, dtype: torch.dtype) -> Tensor:
        zeros = [(0,) * (width - len(row)) for row in rows]
        padded = [(*zero, *row) if left else (*row, *zero) for zero, row in zip(zeros, rows, strict=True)]
        return torch.tensor(padded, dtype=dtype)

    return {
        "prompt_ids": pad([s.prompt for s in samples], before, left=True, dtype=torch.int64),
        "prompt_mask": pad([(1,) * len(s.prompt) for s in samples], before, left=True, dtype=torch.int64),
        "completion_ids": pad([s.tokens for s in samples], after, dtype=torch.int64),
        "completion_mask": pad([(1,) * len(s.tokens) for s in samples], after, dtype=torch.int64),
        "old_per_token_logps": pad([s.old or () for s in samples], after, dtype=torch.float32),
        "ref_per_token_logps": pad([s.reference or () for s in samples], after, dtype=torch.float32),
        "advantages": torch.tensor([s.advantage for s in samples], dtype=torch.float32),
    }


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    losses = {}
    for case, (loss_type, beta) in CASES.items():
        trainer = GRPOTrainer(
            model=load_model(tiny_folder(), "float32"),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(
                output_dir=str(folder), use_cpu=True, bf16=False, report_to=[], delta=4.0, epsilon=0.2, beta=0.0,
                loss_type=loss_type, use_bias_correction_kl=False, num_generations=2, per_device_train_batch_size=2,
                max_completion_length=LIMIT,
            ),
            train_dataset=Dataset.from_list([{"prompt": "a"}] * 2),
            processing_class=load_tokenizer(tiny_folder()),
        )  # fmt: skip
        trainer.beta = beta  # given to it, it would look for a reference model by name
        trainer.current_gradient_accumulation_steps = 1
        for seed in SEEDS:
            trainer.model.train().zero_grad()
            loss = trainer.compute_loss(trainer.model, build_inputs(build_samples(seed=seed)))
            loss.backward()
            losses[f"{case}-{seed}"] = loss.item()
            gradients = {name: each.grad for name, each in trainer.model.named_parameters()}
            save_file(gradients, folder / f"{case}-{seed}.safetensors")
    (folder / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
