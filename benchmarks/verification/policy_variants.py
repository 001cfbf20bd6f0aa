"""Policies for benchmarks: byte-level Qwen2 and Llama of a million parameters, and the variants that an attacker runs.

They are trained here for a minute on the language reference that ships with Python, so that their distributions are
those of language and not of noise.  They are kept under build/bench/policies.
"""

import copy
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from covey.model.policy_files import get_weights, save_policy
from covey.model.tiny import BOS, EOS, PAD, build_tokenizer

ROOT = Path("build/bench/policies")
RECIPE = 5
"""Version of the training.  Increase it if a change here makes the kept policies invalid."""
ARCHITECTURES = ("qwen2", "llama")
STEPS, BATCH, LENGTH, LEARNING_RATE = 120, 16, 192, 3e-3
STALE = (1e-3, 1e-5, 1e-6)
"""Learning rates of the one AdamW step by which a stale policy differs from the true one."""


def build_model(
    architecture: str, seed: int, *, hidden: int = 128, layers: int = 4, vocabulary: int = 259
) -> PreTrainedModel:
    """Build a model of fresh float32 weights.  Qwen2 ties embedding and head, Llama does not."""
    shared: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
    }
    torch.manual_seed(seed)
    if architecture == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**shared, tie_word_embeddings=True))
    return LlamaForCausalLM(LlamaConfig(**shared, tie_word_embeddings=False))


def get_paragraphs() -> list[str]:
    """Return the paragraphs of prose of the language reference, in order.

    Its ruled tables are left out, because every token in them is certain.
    """
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return [each for each in text.split("\n\n") if len(each) > 40 and _is_prose(each)]


def _is_prose(text: str) -> bool:
    return sum(each.isalnum() or each.isspace() for each in text) > 0.8 * len(text)


def _batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[torch.Tensor]:
    """Yield int64[batch, length]: paragraphs between <bos> and <eos>, cut from one long row at random places."""
    tokenizer.model_max_length = 1 << 20
    row = [
        token
        for paragraph in get_paragraphs()
        for token in (BOS, *tokenizer.encode(paragraph, add_special_tokens=False), EOS)
    ]
    data, rng = torch.tensor(row), random.Random(seed)
    while True:
        starts = [rng.randrange(len(data) - LENGTH) for _ in range(BATCH)]
        yield torch.stack([data[start : start + LENGTH] for start in starts])


class Pretrainer:
    """Training of one policy on prose; `step` is one AdamW update."""

    def __init__(self, model: PreTrainedModel, seed: int) -> None:
        self.model = model
        self._batches = _batches(build_tokenizer(), seed)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.01)

    def step(self, rate: float) -> float:
        """Learn from the next batch at learning rate `rate`; return the loss."""
        self.optimizer.param_groups[0]["lr"] = rate
        rows = next(self._batches)
        logits = self.model(rows[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())


def train(model: PreTrainedModel, seed: int, steps: int) -> Pretrainer:
    """Train a model for `steps` steps with a linear warm-up and decay."""
    pretrainer = Pretrainer(model.train(), seed)
    for i in range(steps):
        pretrainer.step(LEARNING_RATE * min(1.0, (i + 1) / 20, max(0.05, (steps - i) / (0.6 * steps))))
    return pretrainer


def build_policies(architecture: str) -> Path:
    """Return the folder of the policies of one architecture, each under its name; train them at the first call.

    - true: the policy that honest workers run.
    - other_model: other initial weights and other data.
    - small: half the width and half the depth.
    - int8, int4: weights of linear layers quantised symmetrically, per row and per group of 32.
    - perturbed_1pct: every weight changed by about 1 %.
    - stale_lr1e-3, stale_lr1e-5, stale_lr1e-6: one AdamW step of that learning rate away.  It changes 100, 11 and 1.4 %
      of the bfloat16 values.  A step of a training run changes 12 to 20 % at 1e-5 and 1.3 % at 1e-6.
    """
    folder = ROOT / f"{architecture}-{RECIPE}"
    if folder.exists():
        return folder
    made = folder.with_suffix(".part")
    shutil.rmtree(made, ignore_errors=True)
    tokenizer = build_tokenizer()

    def save(model: PreTrainedModel, name: str) -> None:
        save_policy(model, tokenizer, made / name, "bfloat16")

    pretrainer = train(build_model(architecture, 1), 1, STEPS)
    save(pretrainer.model, "true")
    for rate in STALE:
        later = Pretrainer(copy.deepcopy(pretrainer.model), 7)
        later.step(rate)
        save(later.model, f"stale_lr{rate:.0e}".replace("e-0", "e-"))
    for name, change in {"int8": round_to_int8, "int4": round_to_int4, "perturbed_1pct": perturb}.items():
        save(build_variant(pretrainer.model, change), name)
    save(train(build_model(architecture, 2), 2, STEPS // 2).model, "other_model")
    save(train(build_model(architecture, 3, hidden=64, layers=2), 3, STEPS).model, "small")
    made.rename(folder)
    return folder


def build_large() -> Path:
    """Return the folder of a Qwen2 of over 20M random parameters, for times that do not depend on the weights."""
    folder = ROOT / f"large-{RECIPE}"
    if not folder.exists():
        made = folder.with_suffix(".part")
        save_policy(build_model("qwen2", 5, hidden=512, layers=6), build_tokenizer(), made, "bfloat16")
        made.rename(folder)
    return folder


def build_wide(vocabulary: int) -> Path:
    """Return the folder of a Llama of random weights with a vocabulary of this size, for times.

    The time of a sampler depends on how certain the tokens are.  Final states have a variance of 1, so this head gives
    logits a deviation of 4, and about as few likely tokens as in language.
    """
    folder = ROOT / f"wide-{vocabulary}-{RECIPE}"
    if not folder.exists():
        made, model = folder.with_suffix(".part"), build_model("llama", 6, hidden=256, layers=2, vocabulary=vocabulary)
        torch.nn.init.normal_(model.lm_head.weight, std=4 / 256**0.5)
        save_policy(model, build_tokenizer(), made, "bfloat16")
        made.rename(folder)
    return folder


def build_variant(
    model: PreTrainedModel,
    change: Callable[[torch.Tensor], torch.Tensor],
    *,
    is_changed: Callable[[str], bool] = lambda name: True,
) -> PreTrainedModel:
    """Return a copy of a model whose matrices are changed, or only those whose names `is_changed` selects.

    `change` is given the values in bfloat16, as float32.
    """
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in get_weights(other).items():
            if weight.ndim == 2 and is_changed(name):
                weight.copy_(change(weight.to(torch.bfloat16).float()))
    return other


def round_to_int8(weight: torch.Tensor) -> torch.Tensor:
    """Quantise the rows of a matrix symmetrically to 8 bits."""
    scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-9) / 127
    return (weight / scale).round() * scale


def round_to_int4(weight: torch.Tensor) -> torch.Tensor:
    """Quantise groups of 32 values of a matrix symmetrically to 4 bits."""
    groups = weight.reshape(-1, 32)
    scale = groups.abs().amax(dim=1, keepdim=True).clamp(min=1e-9) / 7
    return ((groups / scale).round() * scale).reshape(weight.shape)


def perturb(weight: torch.Tensor) -> torch.Tensor:
    """Change every value by about 1 %, equally for equal shapes."""
    generator = torch.Generator(weight.device).manual_seed(weight.numel())
    noise = torch.randn(weight.shape, generator=generator, device=weight.device)
    return weight * (1 + 0.01 * noise)
