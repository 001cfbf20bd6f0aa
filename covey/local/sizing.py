"""Prompt format, lengths and sizes of a new pool, chosen by its model and its questions, each with the reason.

Prompts are drawn from the environment and encoded with the model's tokenizer. The other values follow from the two
lengths, so that they fit together: sizes of submissions, and times of leases and judgements.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from covey.environments.base import Environment
from covey.errors import OperatorError, ProtocolError
from covey.model.policy_files import load_end_tokens, load_tokenizer, read_context
from covey.model.prompts import PromptFormat, encode_prompt, find_turn_end
from covey.model.text import Tokenizer
from covey.protocol.params import MAX_DECODED_BYTES, PoolParams
from trainer.config import EvalSection

SAMPLES = 1024
"""Number of training prompts to draw and encode."""
HELD_OUT: int = EvalSection.model_fields["prompts"].default
"""Maximum number of held-out prompts of an evaluation."""
COMPLETION_TOKENS = 2048
"""Maximum length of a completion if the model's context is long enough."""
OUTLIER = 2
"""The longest prompt counts unless it exceeds the 99th percentile by this factor. Longer prompts are not asked."""
ROUND = 16
"""Lengths are rounded up to a multiple of this number of tokens."""
DECODED_PER_SECOND, REPLAYED_PER_SECOND = 100, 500
"""Tokens per second that a worker at least generates and a validator at least replays."""


Value = TypeVar("Value", int, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Generic[Value]):
    """One value. Example: Choice(value=192, reason="the longest of 1,300 prompts has 181 tokens")."""

    value: Value
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Values for a new pool's files, by name."""

    prompt_format: Choice[str] | None
    """Value of [params.model] in pool.toml. None for the default, which is "raw"."""
    model: Mapping[str, Choice[int]]
    """Other values of [params.model] in pool.toml."""
    params: Mapping[str, Choice[int]]
    """Values of [params] in pool.toml."""
    evaluation: Mapping[str, Choice[int]]
    """Values of [eval] in trainer.toml."""

    def list_choices(self) -> dict[str, Choice[int] | Choice[str]]:
        """Return all values by name, in the order in which they depend on each other."""
        first = {} if self.prompt_format is None else {"prompt_format": self.prompt_format}
        evaluation = {f"eval.{name}": choice for name, choice in self.evaluation.items()}
        return {**first, **self.model, **self.params, **evaluation}


def choose_sizes(source: str | Path, environment: Environment, base: PoolParams) -> Sizes:
    """Choose the sizes for a model and an environment. `base` contains the numbers of groups and rollouts of a task.

    Raises OperatorError("model_unavailable") or OperatorError("unsupported_model"), and
    OperatorError("prompts_too_long") if most prompts do not fit into the model's context.
    """
    context, tokenizer = read_context(source), load_tokenizer(source)
    held_out = environment.held_out(HELD_OUT)
    prompts = [*(environment.prompt(draw) for draw in range(SAMPLES)), *held_out]
    lengths = sorted(
        len(encode_prompt(tokenizer, prompt.text, system=prompt.system, format=PromptFormat()))
        for prompt in {(prompt.system, prompt.text): prompt for prompt in prompts}.values()
    )
    prompt = _choose_prompt(lengths, _measure_template(tokenizer), context)
    completion = _choose_completion(prompt.value, context)
    return Sizes(
        prompt_format=_choose_format(tokenizer, load_end_tokens(source, tokenizer)),
        model={"max_prompt_tokens": prompt, "max_completion_tokens": completion},
        params=choose_pool_sizes(base, prompt.value, completion.value),
        evaluation=_choose_evaluation(len(held_out)),
    )


def _choose_format(tokenizer: Tokenizer, end_tokens: Set[int]) -> Choice[str] | None:
    """Choose the chat format for a model that ends its answers as its chat template ends a turn.

    Base models often have a chat template, too, but their completions end with another token.
    """
    turn_end = find_turn_end(tokenizer, PromptFormat(kind="chat"))
    if turn_end is None or turn_end[1] not in end_tokens:
        return None
    return Choice(value="chat", reason=f"the model's chat template ends a turn with {turn_end[0]}, as its answers end")


def _measure_template(tokenizer: Tokenizer) -> int:
    """Return the number of tokens that the chat template adds to a prompt. 0 if there is no usable template."""
    try:
        chat = encode_prompt(tokenizer, "a", format=PromptFormat(kind="chat"))
    except ProtocolError:
        return 0
    return max(0, len(chat) - len(encode_prompt(tokenizer, "a", format=PromptFormat())))


def _choose_prompt(lengths: Sequence[int], template: int, context: int | None) -> Choice[int]:
    """Choose the maximum length of a prompt for the sorted lengths of sampled prompts."""
    longest, typical = lengths[-1], lengths[math.ceil(0.99 * len(lengths)) - 1]
    added = f", and the chat template adds {template}" if template else ""
    counted = f"{len(lengths):,} different questions"
    if longest <= OUTLIER * typical:
        kept, reason = longest, f"the longest of {counted} has {longest} tokens{added}"
    else:
        kept = typical
        reason = f"99% of {counted} have at most {typical} tokens{added}; longer ones, up to {longest}, are not asked"
    value = ROUND * math.ceil((kept + template) / ROUND)
    if context is None or value <= context - context // 4:
        return Choice(value=value, reason=reason)
    value = context - context // 4
    share = sum(length + template <= value for length in lengths) / len(lengths)
    if share < 0.5:
        raise OperatorError(
            "prompts_too_long",
            f"only {share:.0%} of {counted} have at most {value} tokens, which is what the model's context of "
            f"{context} tokens leaves beside a completion",
            fix="Use a model with a longer context, or a data set with shorter questions",
        )
    return Choice(value=value, reason=f"three quarters of the model's context; {share:.0%} of {counted} fit")


def _choose_completion(prompt: int, context: int | None) -> Choice[int]:
    if context is not None and context - prompt < COMPLETION_TOKENS:
        return Choice(value=context - prompt, reason=f"what the model's context of {context} tokens leaves")
    reason = "room for a chain of thought; raise it for a model that thinks longer"
    return Choice(value=COMPLETION_TOKENS, reason=reason)


def choose_pool_sizes(base: PoolParams, prompt: int, completion: int) -> dict[str, Choice[int]]:
    """Choose the values of [params] that have to change because of the maximum lengths of prompts and completions."""
    groups = base.groups_per_task
    while groups > 1 and 2 * _measure_bytes(base, groups, prompt, completion) > MAX_DECODED_BYTES:
        groups = max(each for each in range(1, groups) if base.groups_per_step % each == 0)
    rollouts = groups * base.group_size
    needed = _measure_bytes(base, groups, prompt, completion)
    lease = math.ceil(rollouts * completion / DECODED_PER_SECOND)
    judgement = math.ceil(rollouts * (prompt + completion) / REPLAYED_PER_SECOND)
    choices = {
        "groups_per_task": Choice(value=groups, reason="larger tasks could not be decoded"),
        "lease_seconds": Choice(
            value=max(lease, math.ceil(base.lease_seconds)),
            reason=f"{rollouts} completions at {DECODED_PER_SECOND} tokens per second",
        ),
        "judgement_seconds": Choice(
            value=max(judgement, math.ceil(base.judgement_seconds)),
            reason=f"{rollouts} rollouts at {REPLAYED_PER_SECOND} tokens per second",
        ),
        "max_submission_bytes": Choice(
            value=max(base.max_submission_bytes, -(-needed // (1 << 20)) << 20),
            reason="the largest file of an honest task fits",
        ),
    }
    return {name: choice for name, choice in choices.items() if choice.value != getattr(base, name)}


def _measure_bytes(base: PoolParams, groups: int, prompt: int, completion: int) -> int:
    """Return an upper bound on the file of an honest submission in bytes."""
    model = base.model.model_copy(update={"max_prompt_tokens": prompt, "max_completion_tokens": completion})
    return base.model_copy(update={"model": model, "groups_per_task": groups}).needed_submission_bytes


def _choose_evaluation(count: int) -> dict[str, Choice[int]]:
    if count == 0:
        return {"every": Choice(value=0, reason="there is no held-out question, so nothing is evaluated")}
    reason = f"at most {HELD_OUT}" if count == HELD_OUT else "all held-out questions that there are"
    return {"prompts": Choice(value=count, reason=reason)}
