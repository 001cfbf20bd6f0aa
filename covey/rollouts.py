"""Turns a task into rollouts: its slots, their completions, and rows with proofs and rewards.

The task and the policy determine everything. A worker has no choice, and a run on one machine does the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from covey.engines.base import Completion, Engine, GenerationRequest
from covey.environments.base import Environment, Grade, Grader, Prompt, Reply
from covey.errors import ProtocolError, TransientError
from covey.model.prompts import PromptFormat
from covey.model.text import decode_completion
from covey.protocol.ids import GroupId, Step
from covey.protocol.params import TrainingParams
from covey.protocol.seeding import SlotDomain, compute_sampling_seed
from covey.protocol.submission_file.rows import Rollout
from covey.slots import draw_prompts
from covey.toploc.proofs import build_many
from covey.toploc.topk import Capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A rollout to generate: its group and sibling, and the request to the engine."""

    group: GroupId
    sibling: int
    prompt: Prompt
    """Prompt of the group, which all siblings share."""
    request: GenerationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A completion that the engine generated for a slot, before it is proved and graded."""

    slot: Slot
    completion: Completion
    text: str


def build_slots(
    domain: SlotDomain, groups: int, params: TrainingParams, *, environment: Environment, engine: Engine
) -> list[Slot]:
    """Return the slots of a task with this many groups, in the order of (group, sibling).

    Raises ProtocolError("bad_task") if the task has too many groups for the pool, and the errors of `draw_prompts`.
    """
    if groups > params.groups_per_task:
        raise ProtocolError(
            "bad_task", f"the task has {groups} groups, but this pool requires {params.groups_per_task}"
        )
    slots = []
    prompts = draw_prompts(
        domain,
        groups,
        environment=environment,
        tokenizer=engine.tokenizer,
        format=PromptFormat.of(params.model),
        longest=params.model.max_prompt_tokens,
    )
    for group, prompt in prompts.items():
        for sibling in range(params.group_size):
            seed = compute_sampling_seed(domain, group, sibling)
            request = GenerationRequest(prompt=prompt.tokens, seed=seed, max_tokens=params.model.max_completion_tokens)
            slots.append(Slot(group=group, sibling=sibling, prompt=prompt.prompt, request=request))
    return slots


def roll_out(
    slots: Sequence[Slot], params: TrainingParams, engine: Engine, *, version: Step, capture: Capture | None
) -> list[Draft]:
    """Generate the completions of all slots in one call, with the values for proofs that `capture` asks for.

    Raises TransientError("wrong_policy") unless every completion was generated with policy `version`.
    """
    completions = engine.generate(
        [slot.request for slot in slots],
        temperature=params.model.temperature,
        capture=capture,
    )
    if any(completion.policy_version != version for completion in completions):
        raise TransientError("wrong_policy", f"the engine generated with a policy other than {version}")
    return [
        Draft(
            slot=slot,
            completion=completion,
            text=decode_completion(engine.tokenizer, completion.tokens, engine.end_tokens),
        )
        for slot, completion in zip(slots, completions, strict=True)
    ]


def grade_drafts(drafts: Sequence[Draft], grade: Grader) -> Sequence[Grade]:
    """Return the grade of each draft."""
    return grade([build_reply(draft) for draft in drafts])


def build_reply(draft: Draft) -> Reply:
    """Return the reply of a draft, as it is graded."""
    completion = draft.completion
    return draft.slot.prompt.build_reply(draft.text, finished=completion.finished, tokens=len(completion.tokens))


def build_rollouts(drafts: Sequence[Draft], grades: Sequence[Grade], *, contract: str = "") -> list[Rollout]:
    """Prove the drafts and return one row per draft, which names the engine's execution contract.

    Its proofs are empty if the drafts were made without capture.
    """
    proven = build_many([draft.completion.tops for draft in drafts])
    return [
        Rollout(
            group=draft.slot.group,
            sibling=draft.slot.sibling,
            seed=draft.slot.request.seed,
            prompt=draft.slot.request.prompt,
            tokens=draft.completion.tokens,
            logprobs=draft.completion.logprobs,
            proofs=tuple(proofs),
            finished=draft.completion.finished,
            reward=graded.reward,
            contract=contract,
        )
        for draft, proofs, graded in zip(drafts, proven, grades, strict=True)
    ]
