"""The ordered checks of a submission. Each takes a `SubmissionClaim` and returns a judgement, or None if it passes.

The first rejection decides. Cheap checks need no weights of the policy. A replay comes last: `check_replay` of all rows
if the submission was drawn, and otherwise `check_rows` of the few rows that the same block draws. Size and form of
peers' data are checked before any arithmetic. Decoding and grading run in subprocesses that may crash.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from covey import slots
from covey.engines.base import Engine
from covey.environments.base import Environment, Grade, Grader, Reply
from covey.environments.grader import is_explained_by_limit
from covey.errors import ProtocolError
from covey.model.prompts import PromptFormat
from covey.protocol import eip712
from covey.protocol.canonical import sha256
from covey.protocol.eip712 import Domain
from covey.protocol.evidence import DRAWN
from covey.protocol.ids import GroupId, Hash
from covey.protocol.messages import Receipt
from covey.protocol.params import PoolParams
from covey.protocol.running_sums import Sums, sum_up
from covey.protocol.seeding import SlotDomain
from covey.protocol.submission_file.rows import Rollout, count_units, is_whole
from covey.protocol.submission_file.sandbox_frames import pack_call, unpack_rows
from covey.protocol.verdict import Judgement, Reason
from covey.runtime.log import get_logger
from covey.sandbox import SandboxError
from covey.slots import DrawnPrompt
from covey.toploc import proofs
from validator.distance_limits import collect_items, find_breach, list_differing
from validator.replay import RolloutDistances, measure

GRADED_TOGETHER = 16
"""Number of replies that are graded between two checks of the clock. It keeps the same number of processes busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTools:
    """Tools of the checks, shared by all submissions of a pool."""

    params: PoolParams
    domain: Domain
    """EIP-712 domain of receipts."""
    engine: Engine
    """Engine in which the submission's policy is loaded before the replay or the tokenizer is used."""
    environment: Environment
    decode: Callable[[bytes], bytes]
    """`codec.decode_framed` in a subprocess that may crash."""
    grade: Grader
    contract: str = ""
    """Digest of the engine's execution contract. Empty: it judges in the calibrated lane alone."""


@dataclass(slots=True, kw_only=True)
class SubmissionClaim:
    """A submission during its judgement. The checks fill in the fields that have a default."""

    receipt: Receipt
    signature: str
    record_hash: Hash
    """Record hash of the claimed policy version, from the chain."""
    contract: str
    """Digest of the execution contract that the order names. Empty: the calibrated lane."""
    drawn: tuple[int, ...]
    """Rows of the file, from 0, that the drawing block has replayed in any case, in drawn order."""
    file: bytes
    due: float = math.inf
    """Time by which a commitment must be sent, by `time.monotonic`. Infinite: at any time, as in an audit."""
    rollouts: list[Rollout] = field(default_factory=list)
    prompts: dict[GroupId, DrawnPrompt] = field(default_factory=dict)
    """The prompts that the groups must have, one per group."""
    live_groups: int = 0
    """Number of groups whose recomputed rewards are not all equal."""
    distances: dict[int, RolloutDistances] = field(default_factory=dict)
    """Distances of the replayed rows by their numbers. The drawn rows come first."""
    sums: Sums = field(default_factory=dict)
    """Sums of `distances`. Empty if they were not compared with thresholds, or not within them."""


Check = Callable[[SubmissionClaim, CheckTools], Judgement | None]


def check_envelope(claim: SubmissionClaim, tools: CheckTools) -> Judgement | None:
    """Check that the file has the receipt's hash and is not too large."""
    if len(claim.file) > tools.params.max_submission_bytes:
        return Judgement.reject(Reason.OVERSIZED, size=len(claim.file))
    if sha256(claim.file) != claim.receipt.work_key:
        return Judgement.reject(Reason.MALFORMED, what="work_key")
    return None


def check_signature(claim: SubmissionClaim, tools: CheckTools) -> Judgement | None:
    """Check that the receipt is signed by its node."""
    try:
        eip712.require_signer(claim.receipt, tools.domain, claim.signature, claim.receipt.node)
    except ProtocolError:
        return Judgement.reject(Reason.MALFORMED, what="signature")
    return None


def check_task(claim: SubmissionClaim, tools: CheckTools) -> Judgement | None:
    """Check that the receipt's number of groups is the pool's number of groups per task.

    The coordinator has checked at intake which node had the lease. This is not signed, so no verdict depends on it.
    """
    if claim.receipt.groups != tools.params.groups_per_task:
        return Judgement.reject(Reason.NOT_YOUR_TASK, groups=claim.receipt.groups)
    return None


def check_schema(claim: SubmissionClaim, tools: CheckTools) -> Judgement | None:
    """Check that the file decodes within its budget. If every attempt crashes the decoder, the file is rejected."""
    try:
        claim.rollouts = unpack_rows(tools.decode(pack_call(claim.file, tools.params.build_budget())))
    except SandboxError as error:
        return Judgement.reject(Reason.MALFORMED, what=error.code)
    except ProtocolError as error:
        reasons = {"oversized": Reason.OVERSIZED, "schema": Reason.SCHEMA}
        return Judgement.reject(reasons.get(error.code, Reason.MALFORMED), what=error.message)
    return None


def check_contract(claim: SubmissionClaim, tools: CheckTools) -> Judgement | None:
    """Check that all rows name the contract of the order, which the pool accepts. Empty is the calibrated lane.

    Rows of another lane would reach validators that cannot judge them, and so evade the replay. The judgement is
    unknown if it is another contract than that of this engine, which cannot check it.
    """
    named, rules = {row.contract for row in claim.rollouts}, tools.params.verification
    accepted = set(rules.list_digests()) | ({""} if rules.mode == "calibrated" else set())
    false = named - (accepted & {claim.contract})
    if false:
        return Judgement.reject(Reason.SCHEMA, what="contract", contract=min(false), order=claim.contract)
    if not _is_known_contract(claim, tools):
        return Judgement.unknown(what="contract")
    return None


def _is_known_contract(claim: SubmissionClaim, tools: CheckTools) -> bool:
    """Return whether this engine can check a submission: it is of the calibrated lane, or of the engine's contract."""
    return claim.contract in {"", tools.contract}


def check_slots(claim: SubmissionClaim, tools: CheckTools) -> Judgement | None:
    """Check that the file contains each (group, sibling) of the task once, and the receipt's number of units."""
    rollouts = claim.rollouts
    if len({(row.group, row.sibling) for row in rollouts}) != len(rollouts):
        return Judgement.reject(Reason.DUPLICATE)
    if not is_whole(rollouts, groups=claim.receipt.groups, group_size=tools.params.group_size):
        return Judgement.reject(Reason.MISSING, rows=len(rollouts))
    if count_units(claim.rollouts) != claim.receipt.units:
        return Judgement.reject(Reason.MALFORMED, what="units")
    return None


def check_seeding(claim: SubmissionClaim, tools: CheckTools) -> Judgement | None:
    """Recompute seeds and prompts from the slots, and compare them token by token."""
    receipt = claim.receipt
    domain = SlotDomain(
        beacon=claim.record_hash,
        pool=receipt.pool,
        policy_version=receipt.policy_version,
        node=receipt.node,
        task=receipt.task,
    )
    claim.prompts = slots.draw_prompts(
        domain,
        receipt.groups,
        environment=tools.environment,
        tokenizer=tools.engine.tokenizer,
        format=PromptFormat.of(tools.params.model),
        longest=tools.params.model.max_prompt_tokens,
    )
    return slots.find_wrong_slot(claim.rollouts, domain, claim.prompts)


def check_termination(claim: SubmissionClaim, tools: CheckTools) -> Judgement | None:
    """Check that each completion ends with an end token or at the length limit, and has no earlier end token."""
    return slots.find_false_end(
        claim.rollouts,
        ends=tools.engine.end_tokens,
        limit=tools.params.model.max_completion_tokens,
        vocabulary=tools.engine.vocabulary_size,
    )


def check_proof_form(claim: SubmissionClaim, tools: CheckTools) -> Judgement | None:
    """Check that there is one proof per window, and that each has the right length and only numbers in range."""
    rules, hidden = tools.params.verification, tools.engine.hidden_size
    places: list[dict[str, int]] = []
    sizes: list[int] = []
    for row in claim.rollouts:
        where = {"group": row.group, "sibling": row.sibling}
        starts = range(0, len(row.tokens), rules.proof_window)
        if len(row.proofs) != len(starts):
            return Judgement.reject(Reason.MALFORMED, what="proof count", **where)
        for window, start in enumerate(starts):
            places.append({"window": window, **where})
            sizes.append(min(rules.proof_window, len(row.tokens) - start) * hidden)
    sent = [proof for row in claim.rollouts for proof in row.proofs]
    malformed = proofs.find_malformed(sent, sizes, rules.proof_top_k)
    if malformed is None:
        return None
    index, what = malformed
    return Judgement.reject(Reason.MALFORMED, what=what, **places[index])


def check_reward(claim: SubmissionClaim, tools: CheckTools) -> Judgement | None:
    """Recompute every reward from the text. The worker's reward must be equal bit for bit.

    In a group of equal rewards, tiny differences would be scaled up to advantages that the worker chooses.
    The judgement is unknown, without a strike for anyone, in three cases: a grading limit may explain the difference,
    the grader gives the same reply another reward when it is asked again, or grading takes more than half of the time
    for a judgement, or of what is left of it.
    """
    engine = tools.engine
    replies = slots.build_replies(claim.rollouts, claim.prompts, tokenizer=engine.tokenizer, ends=engine.end_tokens)
    unclear, deadline = None, math.inf
    rewards: list[float] = []
    for start in range(0, len(replies), GRADED_TOGETHER):
        if start == GRADED_TOGETHER:  # the time starts here: the first replies may wait for grading processes to start
            now = time.monotonic()
            deadline = now + min(tools.params.judgement_seconds, claim.due - now) / 2
        elif time.monotonic() > deadline:
            return Judgement.unknown(what="slow grades", graded=start)
        chunk = slice(start, start + GRADED_TOGETHER)
        wrong: list[tuple[Reply, Grade, dict[str, float | int]]] = []
        for row, reply, grade in zip(claim.rollouts[chunk], replies[chunk], tools.grade(replies[chunk]), strict=True):
            rewards.append(grade.reward)
            if row.reward == grade.reward:
                continue
            details = {"group": row.group, "sibling": row.sibling, "claimed": row.reward, "recomputed": grade.reward}
            if is_explained_by_limit(row.reward, grade, tools.environment.grade_wrong(reply), tools.params.grading):
                unclear = Judgement.unknown(what="limit", **details)
            else:
                wrong.append((reply, grade, details))
        again = tools.grade([reply for reply, _, _ in wrong]) if wrong else ()
        for (_, grade, details), second in zip(wrong, again, strict=True):
            if second.reward == grade.reward:
                return Judgement.reject(Reason.REWARD, **details)
            unclear = Judgement.unknown(what="unsteady grade", again=second.reward, **details)
    claim.live_groups = count_live_groups([row.group for row in claim.rollouts], rewards)
    return unclear


def count_live_groups(groups: Sequence[int], rewards: Sequence[float]) -> int:
    """Return the number of groups whose rewards are not all equal, so that their advantages are not all zero.

    Rollout i is in group `groups[i]`. Example: ([0, 0, 1, 1], [1.0, 0.0, 0.5, 0.5]) -> 1.
    """
    by_group: dict[int, set[float]] = {}
    for group, reward in zip(groups, rewards, strict=True):
        by_group.setdefault(group, set()).add(reward)
    return sum(len(values) > 1 for values in by_group.values())


CONFIRMED_ROWS = 2
"""Number of differing rollouts that are replayed once more in the exact lane. Two show that it is not one fault."""


def check_rows(claim: SubmissionClaim, tools: CheckTools) -> Judgement | None:
    """Replay the drawn rows, as `check_replay` replays all. It passes if no row is drawn."""
    return _replay(claim, tools, claim.drawn) if claim.drawn else None


def measure_drawn(claims: Sequence[SubmissionClaim], tools: CheckTools) -> None:
    """Replay the drawn rows of several submissions in one pass, and keep their distances for `check_rows`."""
    known = [claim for claim in claims if _is_known_contract(claim, tools)]
    in_file_order = [(claim, row) for claim in known for row in sorted(claim.drawn)]
    measured = measure([claim.rollouts[row] for claim, row in in_file_order], tools.engine, tools.params)
    for (claim, row), distances in zip(in_file_order, measured, strict=True):
        claim.distances[row] = distances


def check_replay(claim: SubmissionClaim, tools: CheckTools) -> Judgement | None:
    """Replay all rows and judge the drawn ones first, so that a failure in these has the reason of `check_rows`."""
    return _replay(claim, tools, dict.fromkeys([*claim.drawn, *range(len(claim.rollouts))]))


def _replay(claim: SubmissionClaim, tools: CheckTools, rows: Collection[int]) -> Judgement | None:
    """Replay rows once and compare proofs, seeded sampling, end tokens and claimed log-probabilities.

    In the exact lane a difference must be the same in a second replay. If the second one equals the claim, this
    machine's first replay was wrong, and if it differs in another way, the judgement is unknown. Nothing is replayed
    under a contract that this engine does not have: its bits may differ from those of honest work.
    """
    rules = tools.params.verification
    if not _is_known_contract(claim, tools):
        return None
    if claim.contract:
        rules = rules.model_copy(update={"mode": "exact"})
    missing = sorted(set(rows) - set(claim.distances))  # siblings follow each other, which shares their prompts
    measured = measure([claim.rollouts[row] for row in missing], tools.engine, tools.params)
    by_row = claim.distances | dict(zip(missing, measured, strict=True))
    claim.distances = {row: by_row[row] for row in rows}
    breach = find_breach(list(claim.distances.values()), rules, drawn=len(claim.drawn))
    if breach is not None and rules.mode == "exact":
        is_confirmed = _replay_again(claim, tools)
        breach = breach if is_confirmed else find_breach(list(claim.distances.values()), rules, drawn=len(claim.drawn))
        if breach is not None and not is_confirmed:
            return Judgement.unknown(what="unsteady replay", **breach.statistics)
    if breach is None:
        claim.sums = sum_distances(claim.distances, rows) if rules.mode == "calibrated" else {}
        return None
    row = None if breach.row is None else claim.rollouts[list(claim.distances)[breach.row]]
    where = {} if row is None else {"group": row.group, "sibling": row.sibling}
    return Judgement.reject(breach.reason, **breach.statistics, **where, **{DRAWN: int(breach.is_drawn)})


def sum_distances(distances: Mapping[int, RolloutDistances], rows: Collection[int]) -> Sums:
    """Return the sums of the distances of some replayed rows, or nothing if there are none."""
    found = [distances[row] for row in rows]
    return sum_up({name: values.tolist() for name, _, values in collect_items(found)}) if found else {}


def _replay_again(claim: SubmissionClaim, tools: CheckTools) -> bool:
    """Replay the first differing rollouts once more. Keep the new distances, and return whether they are the same."""
    differing = list_differing(list(claim.distances.values()), tools.params.verification.proof_window)
    rows = [row for row, windows in zip(claim.distances, differing, strict=True) if windows][:CONFIRMED_ROWS]
    before = [claim.distances[row] for row in rows]
    again = measure([claim.rollouts[row] for row in rows], tools.engine, tools.params)
    for row, distances in zip(rows, again, strict=True):
        claim.distances[row] = distances
    is_confirmed = all(one.is_same(other) for one, other in zip(before, again, strict=True))
    if not is_confirmed:
        get_logger().error("two replays on this machine differ", task=claim.receipt.task, rows=rows)
    return is_confirmed


CHEAP_CHECKS: tuple[Check, ...] = (
    check_envelope,
    check_signature,
    check_task,
    check_schema,
    check_contract,
    check_slots,
    check_seeding,
    check_termination,
    check_proof_form,
    check_reward,
)
ROW_CHECKS: tuple[Check, ...] = (*CHEAP_CHECKS, check_rows)
"""Checks of a submission that is not replayed whole, in the order in which they run."""
CHECKS: tuple[Check, ...] = (*CHEAP_CHECKS, check_replay)
"""All checks in the order in which they run. Cheap checks with certain results come first."""
