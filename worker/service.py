"""What a worker decides: which prompts and seeds a task means, what it rolls out, what it signs.

Called by `loop`.  Everything follows from the task and the policy; the worker chooses nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from covey.engines.base import Completion, Engine, GenerationRequest
from covey.environments.base import Environment, Grader, Prompt
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.model.prompts import PromptFormat
from covey.model.text import decode_completion
from covey.protocol import eip712
from covey.protocol.api.worker import SubmissionAnswer, TaskOrder
from covey.protocol.canonical import sha256
from covey.protocol.eip712 import Domain
from covey.protocol.ids import Address, GroupId, PoolId, Step
from covey.protocol.messages import Countersignature, Receipt
from covey.protocol.params import PoolParams
from covey.protocol.seeding import SlotDomain, compute_sampling_seed
from covey.protocol.submission_file.rows import Rollout, count_units
from covey.slots import draw_prompts
from covey.toploc.proofs import build_many
from covey.toploc.topk import build_capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One rollout to be: its place and what is asked of the engine."""

    group: GroupId
    sibling: int
    prompt: Prompt
    """What the group is asked."""
    request: GenerationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What an engine made of a slot, neither proven nor graded yet."""

    slot: Slot
    completion: Completion
    text: str


def build_slots(
    task: TaskOrder, params: PoolParams, *, pool: PoolId, node: Address, environment: Environment, engine: Engine
) -> list[Slot]:
    """The task's slots in order of (group, sibling).

    Raises ProtocolError("bad_task") for more groups than a task of the pool has, and as `draw_prompts`.
    """
    if task.groups > params.groups_per_task:
        raise ProtocolError(
            "bad_task", f"a task of {task.groups} groups, where the pool's have {params.groups_per_task}"
        )
    domain = SlotDomain(
        beacon=task.manifest_hash, pool=pool, policy_version=task.policy_version, node=node, task=task.task
    )
    slots = []
    prompts = draw_prompts(
        domain,
        task.groups,
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


def roll_out(slots: Sequence[Slot], params: PoolParams, engine: Engine, *, version: Step) -> list[Draft]:
    """Generate all slots together; raise TransientError("wrong_policy") unless policy `version` made every token."""
    completions = engine.generate(
        [slot.request for slot in slots],
        temperature=params.model.temperature,
        capture=build_capture(params.verification),
    )
    if any(completion.policy_version != version for completion in completions):
        raise TransientError("wrong_policy", f"the engine did not generate with policy {version}")
    return [
        Draft(
            slot=slot,
            completion=completion,
            text=decode_completion(engine.tokenizer, completion.tokens, engine.end_tokens),
        )
        for slot, completion in zip(slots, completions, strict=True)
    ]


def build_rollouts(drafts: Sequence[Draft], grade: Grader) -> list[Rollout]:
    """Prove and grade; one row a draft."""
    proven = build_many([draft.completion.tops for draft in drafts])
    replies = [
        draft.slot.prompt.build_reply(
            draft.text, finished=draft.completion.finished, tokens=len(draft.completion.tokens)
        )
        for draft in drafts
    ]
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
        )
        for draft, proofs, graded in zip(drafts, proven, grade(replies), strict=True)
    ]


def build_receipt(
    task: TaskOrder,
    params: PoolParams,
    *,
    pool: PoolId,
    node: Address,
    contributor: Address,
    rollouts: Sequence[Rollout],
    file: bytes,
    now: float,
) -> Receipt:
    """The claim to be signed over a finished file."""
    return Receipt(
        pool=pool,
        task=task.task,
        lease=task.lease,
        node=node,
        contributor=contributor,
        policy_version=task.policy_version,
        work_key=sha256(file),
        groups=task.groups,
        units=count_units(rollouts),
        deadline=int(now + params.receipt_seconds),
    )


FINAL_CODES = frozenset(
    {
        "bad_countersignature",
        "bad_message",
        "bad_receipt",
        "duplicate_submission",
        "equivocation",
        "lease_expired",
        "not_your_task",
        "oversized",
        "stale",
        "suspended",
        "unknown_node",
        "unknown_task",
    }
)
"""After these a receipt is worth nothing; after any other refusal (a proxy's, an expired link) it is sent again."""
PROMISED_EPOCHS = 128
"""A fair promise is at most so many epochs away: the ledger keeps 256, and a challenge needs some of them."""
MOST_AHEAD_SECONDS = 3600
"""A promise that is dated further ahead would put its draw, and the pay, off.  Clocks may differ by less."""


@contextmanager
def explain_other_instance() -> Iterator[None]:
    """Raise OperatorError("another_instance") where the coordinator hears another worker with this node's key."""
    try:
        yield
    except ProtocolError as error:
        if error.code != "another_instance":
            raise
        fix = "Or give this machine a key of its own with covey join"
        raise OperatorError(error.code, error.message, fix=fix) from error


def require_final(error: ProtocolError) -> None:
    """Return when a refusal is final; raise TransientError when the same receipt may still be taken."""
    if error.code not in FINAL_CODES:
        raise TransientError(error.code, error.message) from error


def require_promise(
    answer: SubmissionAnswer,
    receipt: Receipt,
    *,
    domain: Domain,
    operator: Address,
    earliest: int,
    latest: int,
    first_epochs: int,
    last_epochs: int,
) -> Countersignature:
    """The operator's promise for `receipt`; raise ProtocolError("bad_countersignature") for a wrong or dated one.

    `earliest`, `latest`: times, in Unix seconds, that it must be dated after and not beyond.  A promise dated
    `draw_seconds` before the receipt was sent would let the coordinator know the draw when it signs.
    `first_epochs`, `last_epochs`: how many epochs the ledger had when the receipt was first sent and when the answer
    came.
    """
    promise = Countersignature(
        receipt_hash=answer.receipt_hash, signed_at=answer.signed_at, latest_epoch=answer.latest_epoch
    )
    if promise.receipt_hash != eip712.compute_struct_hash(receipt):
        raise ProtocolError("bad_countersignature", "it is for another receipt")
    if eip712.recover_signer(promise, domain, answer.signature) != operator:
        raise ProtocolError("bad_countersignature", "it is not signed by the pool's operator")
    if not earliest < promise.signed_at <= latest:
        message = f"it is dated {promise.signed_at}, which is not after {earliest} and up to {latest}"
        raise ProtocolError("bad_countersignature", message)
    if not first_epochs <= promise.latest_epoch <= last_epochs + PROMISED_EPOCHS:
        message = f"it names epoch {promise.latest_epoch}, {first_epochs} to {last_epochs + PROMISED_EPOCHS} are fair"
        raise ProtocolError("bad_countersignature", message)
    return promise
