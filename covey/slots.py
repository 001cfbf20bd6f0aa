"""Checks of a task's rollouts that do not need the policy: prompts, seeds, ends and the replies to grade.

They depend only on the task's slots, the environment and the tokenizer. A validator applies them to every submission,
and the trainer repeats them for submissions that no validator replayed. The caller has already checked that every row
belongs to a group of the task.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from covey.environments.base import Environment, Prompt, Reply
from covey.environments.task_draws import draw_below
from covey.errors import ProtocolError
from covey.model.prompts import PromptFormat, encode_prompt
from covey.model.text import Tokenizer, decode_completion
from covey.protocol.ids import GroupId
from covey.protocol.seeding import SlotDomain, compute_prompt_draw, compute_sampling_seed
from covey.protocol.submission_file.rows import Rollout
from covey.protocol.verdict import Judgement, Reason

DRAWS = 32
"""Maximum number of prompts to try for one draw. If all are too long, no prompt of the pool is assumed to fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPrompt:
    """Prompt of a group. Example: DrawnPrompt(prompt=environment.prompt(draw), tokens=(2, 71, 13))."""

    prompt: Prompt
    """Prompt from the environment."""
    tokens: tuple[int, ...]
    """Token ids of the prompt as the model receives it."""


def draw_prompts(
    domain: SlotDomain,
    groups: int,
    *,
    environment: Environment,
    tokenizer: Tokenizer,
    format: PromptFormat,
    longest: int,
) -> dict[GroupId, DrawnPrompt]:
    """Return the prompt of each group of a task.

    Each group's draw determines a sequence of prompts, of which the first with at most `longest` tokens is used.
    Raises ProtocolError("prompt_too_long") if the first `DRAWS` prompts are all longer, and the errors of
    `encode_prompt`.
    """
    return {
        group: draw_prompt(
            compute_prompt_draw(domain, group),
            environment=environment,
            tokenizer=tokenizer,
            format=format,
            longest=longest,
        )
        for group in map(GroupId, range(groups))
    }


def draw_prompt(
    draw: int, *, environment: Environment, tokenizer: Tokenizer, format: PromptFormat, longest: int
) -> DrawnPrompt:
    """Return the first prompt of a draw that has at most `longest` tokens.

    Raises the errors of `draw_prompts`.
    """
    for attempt in range(DRAWS):
        number = draw if attempt == 0 else draw_below("prompt", draw, 1 << 63, attempt=attempt)
        prompt = environment.prompt(number)
        tokens = encode_prompt(tokenizer, prompt.text, system=prompt.system, format=format)
        if len(tokens) <= longest:
            return DrawnPrompt(prompt=prompt, tokens=tuple(tokens))
    message = f"all {DRAWS} prompts of a draw exceed the limit of {longest} tokens; the last one has {len(tokens)}"
    raise ProtocolError("prompt_too_long", message)


def find_wrong_slot(
    rollouts: Sequence[Rollout], domain: SlotDomain, prompts: Mapping[GroupId, DrawnPrompt]
) -> Judgement | None:
    """Return a rejection for the first row whose prompt or seed differs from its slot's. None if there is no such row.

    Prompts are compared token by token.
    """
    for row in rollouts:
        if row.prompt != prompts[row.group].tokens:
            return Judgement.reject(Reason.WRONG_PROMPT, group=row.group, sibling=row.sibling)
        if row.seed != compute_sampling_seed(domain, row.group, row.sibling):
            return Judgement.reject(Reason.WRONG_SEED, group=row.group, sibling=row.sibling)
    return None


def find_false_end(rollouts: Sequence[Rollout], *, ends: Set[int], limit: int, vocabulary: int) -> Judgement | None:
    """Return a rejection for the first row with a token outside the vocabulary or a wrong end. None if all rows pass.

    A completion must end at the first of the tokens `ends`, or after `limit` tokens if there is none.
    """
    for row in rollouts:
        where = {"group": row.group, "sibling": row.sibling}
        if max(row.tokens) >= vocabulary:
            return Judgement.reject(Reason.MALFORMED, what="token", **where)
        ended = row.tokens[-1] in ends
        is_early = not ends.isdisjoint(row.tokens[:-1])
        if is_early or row.finished != ended or not (ended or len(row.tokens) == limit):
            return Judgement.reject(Reason.FALSE_TERMINATION, tokens=len(row.tokens), **where)
    return None


def build_replies(
    rollouts: Sequence[Rollout],
    prompts: Mapping[GroupId, DrawnPrompt],
    *,
    tokenizer: Tokenizer,
    ends: Set[int],
) -> list[Reply]:
    """Return the reply to grade for each row: its prompt, and its text without the end token (one of `ends`)."""
    return [
        prompts[row.group].prompt.build_reply(
            decode_completion(tokenizer, row.tokens, ends), finished=row.finished, tokens=len(row.tokens)
        )
        for row in rollouts
    ]
