"""What can be checked of a task's rollouts without its policy: prompts and seeds, ends, rewards.

All of it follows from the task's slots, the environment and the tokenizer.  A validator checks every submission so, and
the trainer checks again what nobody replayed.  Rows are of the groups of their task: the caller has checked that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from covey.environments.base import Environment, EnvironmentSpec
from covey.environments.registry import build_grading
from covey.model.text import Tokenizer, decode_completion, encode_prompt
from covey.protocol.ids import GroupId
from covey.protocol.rollout import Rollout
from covey.protocol.seeding import SlotDomain, compute_prompt_draw, compute_sampling_seed
from covey.protocol.verdict import Judgement, Reason

Grade = Callable[[bytes], Sequence[float]]
"""Grades the payload of `build_grading` in a process that may die."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPrompt:
    """The prompt of a group.  Example: DrawnPrompt(draw=2**62 + 5, tokens=(2, 71, 13))."""

    draw: int
    """The integer that the environment draws the prompt from."""
    tokens: tuple[int, ...]


def draw_prompts(
    domain: SlotDomain, groups: int, *, environment: Environment, tokenizer: Tokenizer
) -> dict[GroupId, DrawnPrompt]:
    """The prompt of each group of a task."""
    draws = {group: compute_prompt_draw(domain, group) for group in map(GroupId, range(groups))}
    return {
        group: DrawnPrompt(draw=draw, tokens=tuple(encode_prompt(tokenizer, environment.prompt(draw).text)))
        for group, draw in draws.items()
    }


def find_wrong_slot(
    rollouts: Sequence[Rollout], domain: SlotDomain, prompts: Mapping[GroupId, DrawnPrompt]
) -> Judgement | None:
    """A rejection of the first row whose prompt, token by token, or seed is not that of its slot."""
    for row in rollouts:
        if row.prompt != prompts[row.group].tokens:
            return Judgement.reject(Reason.WRONG_PROMPT, group=row.group, sibling=row.sibling)
        if row.seed != compute_sampling_seed(domain, row.group, row.sibling):
            return Judgement.reject(Reason.WRONG_SEED, group=row.group, sibling=row.sibling)
    return None


def find_false_end(rollouts: Sequence[Rollout], *, end: int, limit: int, vocabulary: int) -> Judgement | None:
    """A rejection of the first row with a token outside the vocabulary, or that does not end as a completion does: with
    the token `end`, which stands nowhere else, or after `limit` tokens."""
    for row in rollouts:
        where = {"group": row.group, "sibling": row.sibling}
        if max(row.tokens) >= vocabulary:
            return Judgement.reject(Reason.MALFORMED, what="token", **where)
        ended = row.tokens[-1] == end
        if end in row.tokens[:-1] or row.finished != ended or not (ended or len(row.tokens) == limit):
            return Judgement.reject(Reason.FALSE_TERMINATION, tokens=len(row.tokens), **where)
    return None


def compute_rewards(
    rollouts: Sequence[Rollout],
    prompts: Mapping[GroupId, DrawnPrompt],
    *,
    spec: EnvironmentSpec,
    tokenizer: Tokenizer,
    grade: Grade,
) -> Sequence[float]:
    """The reward of each row, from its text."""
    items = [
        (prompts[row.group].draw, decode_completion(tokenizer, row.tokens), row.finished, len(row.tokens))
        for row in rollouts
    ]
    return grade(build_grading(spec, items))
