"""The shipped tiny model: a byte-level Qwen2 with 247,104 parameters that has partly learned the demo's task.

`trainer.tiny_model` creates it, the demo trains it, and tests use it. `tiny_folder` returns its folder. Its warm start
ended when a third of its completions were correct at temperature 1, so reinforcement learning can improve it.
"""

import random
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from covey.model.policy_files import get_head
from covey.model.prompts import RAW, encode_prompt
from covey.model.recipe import SPELLING, WarmStart

PAD, EOS, BOS = 0, 1, 2
LEARNING_RATE = 2e-3
"""Learning rate of a warm start after its first 50 steps."""
MAX_POSITIONS = 256
"""Maximum sequence length of the model in tokens."""
BATCH = 32
"""Number of examples per step."""
_IGNORED = -100
"""Label of a position that has no loss."""


def tiny_folder() -> Path:
    """Return the folder of the shipped tiny model, with config, tokenizer and bfloat16 weights."""
    return Path(str(resources.files("covey.model").joinpath("tiny")))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a byte tokenizer without merges. Its 259 entries are <pad>, <eos>, <bos> and the 256 bytes."""
    vocabulary = {"<pad>": PAD, "<eos>": EOS, "<bos>": BOS}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[symbol] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=MAX_POSITIONS, **names)  # type: ignore[no-untyped-call]


def build_model(seed: int) -> PreTrainedModel:
    """Build the architecture with new random float32 weights. Equal seeds produce equal weights."""
    config = Qwen2Config(
        vocab_size=259,
        hidden_size=96,
        num_hidden_layers=2,
        intermediate_size=256,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        initializer_range=0.06,
        attention_dropout=0.0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def warm_start(
    seed: int,
    examples: Iterator[tuple[str, str]],
    measure: Callable[[PreTrainedModel, PreTrainedTokenizerFast], float],
    on_progress: Callable[[int, float], None],
    *,
    recipe: WarmStart = SPELLING,
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Train on supervised examples until `measure` reaches the gate, then on examples with wrong symbols in the
    completions.

    The noise makes the model uncertain, not wrong. Without it, a model whose warm start was stopped early would not
    learn any further.

    `examples` yields (prompt, completion) pairs without end, `measure` returns the mean reward at temperature 1, and
    `on_progress` is called with the step and its loss. Equal arguments produce equal weights on one machine with one
    thread.
    """
    tokenizer, model = build_tokenizer(), build_model(seed).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.0)
    rng = random.Random(seed)

    def learn(step: int, rate: float, noise: float) -> None:
        batch = [next(examples) for _ in range(BATCH)]
        rows = [(prompt, _blur(answer, noise, recipe.symbols, rng)) for prompt, answer in batch]
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * rate
        on_progress(step, _update(model, tokenizer, optimizer, rows))

    step = 0
    while step < recipe.clean_max:
        learn(step, min(1.0, (step + 1) / 50), 0.0)
        step += 1
        is_due = step >= recipe.clean_min and step % recipe.clean_every == 0
        if is_due and measure(model, tokenizer) >= recipe.gate:
            break
    for left in range(recipe.noisy_steps, 0, -1):
        learn(step, max(0.05, left / recipe.noisy_steps), recipe.noise)
        step += 1
    return model.train(False), tokenizer


def _blur(answer: str, noise: float, symbols: str, rng: random.Random) -> str:
    if noise == 0:
        return answer
    return "".join(rng.choice(symbols) if each.lower() in symbols and rng.random() < noise else each for each in answer)


def _update(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    optimizer: torch.optim.Optimizer,
    rows: list[tuple[str, str]],
) -> float:
    """Take one cross-entropy step on the completions and their <eos>. Returns the mean loss per completion token."""
    prompts = [encode_prompt(tokenizer, prompt, format=RAW) for prompt, _ in rows]
    answers = [[*tokenizer.encode(answer, add_special_tokens=False), EOS] for _, answer in rows]
    length = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    inputs = torch.full((len(rows), length), PAD)
    labels = torch.full((len(rows), length), _IGNORED)
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        inputs[i, :end] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : end] = torch.tensor(answer)
    # With right padding and causal attention a real position never attends to padding, so no mask is needed.
    hidden = model.base_model(input_ids=inputs[:, :-1]).last_hidden_state
    targets = labels[:, 1:]
    kept = targets != _IGNORED
    loss = F.cross_entropy(get_head(model)(hidden[kept]), targets[kept])
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())
