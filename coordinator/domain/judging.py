"""How submissions are judged: drawn, judged in turns, verdicts committed, revealed and tallied.

`audit_draws` says whether work is replayed, and `panel` who judges it and what the verdicts decide.  What follows from
a ruling for node, tasks and step is applied here.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

from coordinator.db.judging_queries import JUDGED_STATES
from coordinator.db.models import JudgementRow, SubmissionRow
from coordinator.db.repository import Repository
from coordinator.domain import audit_draws, exact_lane, nodes, panel, settlement, sum_limits, turn_order
from coordinator.domain.panel import Look, Ruling, is_rejected
from coordinator.domain.steps import close_step, plan_tasks
from covey.errors import ProtocolError
from covey.protocol import messages
from covey.protocol.canaries import CanaryKind
from covey.protocol.ids import Address, Hash
from covey.protocol.params import PoolParams
from covey.protocol.running_sums import Sums
from covey.protocol.status import SUBMISSION_MOVES, SubmissionState, require_move
from covey.protocol.verdict import Decision, Reason, Severity

MIN_VERDICT_SECONDS = 3600
"""A verdict must stay valid long enough to be brought to the court."""
LOOK_SECONDS = 30.0
"""Maximum time between two looks at an undecided submission that is drawn."""
SLOW_SHARE = 0.2
"""Share of `judgement_seconds` at their end in which a commitment counts as slow. Validators that always answer at the
last moment delay work without letting a turn lapse."""
TURNS = "turns"
"""Name of the fact that changes whenever there may be something to do for a validator that waits."""
PAGES = (8, 8, 16, 32, 64, 128, 256)
"""Numbers of turns that are read at a time until there is one for the validator."""
OURS = (Reason.UNDECIDED, Reason.CANARY)
"""Reasons that no validator gives and no node is blamed for."""

Turn = tuple[JudgementRow, SubmissionRow]
"""A turn and the submission that it is about."""


def dispatch(
    repository: Repository,
    params: PoolParams,
    rows: Sequence[SubmissionRow],
    *,
    validators: Sequence[Address],
    active: Container[str],
    find_block: audit_draws.FindBlock,
    secret: bytes,
    now: float,
) -> None:
    """Decide what can be decided of some undecided submissions, apply that, then draw and open turns for the others.

    Called by jobs only. `validators` are all of the pool, and `active` those whose verdicts the court counts: one that
    adds to its bond may judge again, so work is not void because few are active. `rows` have their judgements. Each
    row's `look_at` is set to the next time at which there may be something to do for it.
    """
    due, standing = settlement.find_due(repository, params, rows, now=now), repository.list_validators()
    able = {row.receipt_hash: exact_lane.list_able(row, validators, standing) for row in rows}
    passed = [exact_lane.list_passed(params, row, able[row.receipt_hash], standing, now=now) for row in rows]
    exact_lane.record_passes(repository, chain.from_iterable(passed), now=now)
    look = panel.advance_turns(params, rows, able=able, active=active, due=due, now=now)
    apply(repository, params, look, validators=validators, now=now)
    above = repository.list_nodes_above({row.node for row in rows if row.draw is None})
    opened = 0
    for row in rows:
        if row.state is not SubmissionState.SUBMITTED:
            continue
        if audit_draws.draw(repository, params, row, above=above, find_block=find_block, secret=secret):
            opened += panel.open_missing(params, row, validators=able[row.receipt_hash], now=now)
        row.look_at = _compute_next_look(params, row, now)
    if opened:
        announce_turns(repository)


def announce_turns(repository: Repository) -> None:
    """Let validators that wait look for turns: there are new ones, or verdicts may be revealed."""
    repository.set_fact(TURNS, repository.get_fact(TURNS) + 1)


def _compute_next_look(params: PoolParams, row: SubmissionRow, now: float) -> float:
    """Return when there may be something to do for an undecided submission if nobody says anything about it."""
    if row.draw is None:
        return now + audit_draws.LOOK_SECONDS
    deadlines = [turn.deadline for turn in turn_order.list_current(row) if turn.verdict is None and not turn.lapsed]
    deadlines = [deadline for deadline in deadlines if deadline > now]
    return min(now + LOOK_SECONDS, row.signed_at + params.receipt_seconds, *deadlines)


def forget_draws_above(repository: Repository, block: int) -> None:
    """A reorganisation removed all blocks above this one: draw again what they drew, unless it is in an epoch.

    Work that validators have judged without a whole replay is replayed, because the block that replaces its own may ask
    for that and draws other rows. What was ordered by the removed block stays ordered. Turns without a commitment end.
    """
    for row in repository.list_drawn(above=block):
        row.draw, row.draw_block, row.look_at = None, None, 0.0
        if not row.audited and any(turn.commitment for turn in row.judgements):
            nodes.judge_again(repository, row)
        for turn in row.judgements:
            turn.drew_other_rows = True
        panel.close_uncommitted(row)


class TurnQuery(NamedTuple):
    """What a validator asks for. Example: TurnQuery(address, validators, holding=(7,), free_turns=2)."""

    validator: Address
    validators: Sequence[Address]
    """All active validators of the pool."""
    holding: Sequence[int]
    """Turns that it was judging when it asked. A verdict may be revealed although its turn is among them."""
    free_turns: int
    """Number of new turns that it has room for."""
    contract: str = ""
    """Digest of its execution contract. Empty: it judges in the calibrated lane alone."""


class Order(NamedTuple):
    """What a validator is to do next."""

    kind: Literal["judge", "reveal"]
    turn: JudgementRow
    row: SubmissionRow
    place: int | None = None
    """Place of the validator in the drawn order if it has not taken the turn yet. None if it has."""


def find_order(repository: Repository, params: PoolParams, query: TurnQuery, *, now: float) -> Order | None:
    """Return the next order for a validator: to reveal when all commitments are in, otherwise to judge.

    A turn that it has taken, has not committed to and does not hold is offered again, on the same clock: an answer may
    be lost, and a validator may be restarted. It gets a new turn only if it has room for one.
    """
    for turn, row in _page(partial(repository.list_ready, query.validator)):
        if panel.is_revealing(params, row):
            return Order("reveal", turn, row)
    held = repository.list_held(query.validator)
    lost = next((repository.get_judgement(turn) for turn in held if turn not in query.holding), None)
    if lost is not None:
        return Order("judge", lost, _require_submission(repository, lost))
    if not query.free_turns or len(held) >= panel.MOST_HELD:
        return None
    standing = repository.list_validators()
    for turn, row in _page(partial(repository.list_free, query.contract)):
        if row.draw is None:  # a reorganisation removed the block that drew it
            continue
        place = _find_place(params, row, turn, query, standing=standing, now=now)
        if place is not None:
            return Order("judge", turn, row, place)
    return None


def _page(
    read: Callable[..., list[tuple[JudgementRow, SubmissionRow]]],
) -> Iterator[tuple[JudgementRow, SubmissionRow]]:
    """Yield turns, of which few are read at first, because the first ones suffice as a rule."""
    after = 0
    for size in PAGES:
        page = read(after=after, limit=size)
        yield from page
        if len(page) < size:
            return
        after = page[-1][0].id


def take_turn(
    repository: Repository, params: PoolParams, query: TurnQuery, judgement: int, *, now: float
) -> Order | None:
    """Give a validator the free turn that `find_order` has found for it. None if it may not take it any more."""
    turn = repository.get_judgement(judgement)
    if turn is None or turn.validator is not None or turn.lapsed:
        return None
    row = _require_submission(repository, turn)
    if row.draw is None:
        return None
    if len(repository.list_held(query.validator)) >= panel.MOST_HELD or not is_judged(row):
        return None
    standing = repository.list_validators()
    place = _find_place(params, row, turn, query, standing=standing, now=now)
    if place is None:
        return None
    panel.take(params, row, turn, validator=query.validator, place=place, now=now)
    return Order("judge", turn, row, place)


def take_free(
    repository: Repository, params: PoolParams, query: TurnQuery, judgement: int, *, now: float
) -> Order | None:
    """Give a validator the free turn that was found for it, or the next order if another validator was faster.

    Validators that wait look at the same turns, and without the next one all but one of them would wait on.
    """
    taken = take_turn(repository, params, query, judgement, now=now)
    if taken is not None:
        return taken
    found = find_order(repository, params, query, now=now)
    if found is None or found.place is None:
        return found
    return take_turn(repository, params, query, found.turn.id, now=now)


def record_commit(
    repository: Repository, params: PoolParams, *, validator: str, judgement: int, commitment: Hash, now: float
) -> SubmissionRow:
    """Note a commitment; the same one again is no error.  Raises ProtocolError "already_committed"."""
    row = _require_turn(repository, validator, judgement)
    if row.commitment not in (None, commitment):
        raise ProtocolError("already_committed", "another commitment was given", status=409)
    submission = _require_submission(repository, row)
    if row.commitment is None:
        row.commitment = commitment
        if row.deadline - now < SLOW_SHARE * params.judgement_seconds:
            repository.require_validator(validator).slow += 1
        exact_lane.note_commitment(repository, submission, validator, now=now)
        panel.start_reveals(params, submission, now)
        if panel.is_revealing(params, submission):
            announce_turns(repository)
    return submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Reveal:
    """A signed verdict that a validator shows after it has committed to it."""

    judgement: int
    """Id of the turn."""
    verdict: messages.Verdict
    digest: Hash
    """EIP-712 digest of the verdict."""
    salt: Hash
    signature: str
    live_groups: int | None
    """What the evidence says of live groups. None: nothing, or nonsense."""
    sums: Sums | None
    """Sums of the replay in the evidence. None: none, or nonsense."""
    is_in_drawn_rows: bool = False
    """Whether the evidence of a rejection says that the drawn rows alone show why."""


def record_reveal(repository: Repository, params: PoolParams, reveal: Reveal, *, now: float) -> SubmissionRow:
    """Note a revealed verdict, and the live groups and sums in its evidence. Raises the errors of `require_reveal`."""
    row = require_reveal(repository, params, reveal, now=now)
    row.verdict, row.signature, row.live_groups = reveal.verdict, reveal.signature, reveal.live_groups
    row.drawn_rows_false = reveal.is_in_drawn_rows and reveal.verdict.outcome == Decision.REJECT
    submission = _require_submission(repository, row)
    row.sums = sum_limits.find_countable(params, submission, row, reveal.sums)
    exact_lane.note_verdict(repository, submission, row)
    submission.look_at = 0.0
    return submission


def require_reveal(repository: Repository, params: PoolParams, reveal: Reveal, *, now: float) -> JudgementRow:
    """Return the turn of a verdict that may be revealed now.

    Raises ProtocolError "commitment_mismatch", "not_yet", "bad_verdict".
    """
    row = _require_turn(repository, reveal.verdict.validator, reveal.judgement)
    submission = _require_submission(repository, row)
    if row.commitment != messages.compute_commitment(reveal.digest, reveal.salt):
        raise ProtocolError("commitment_mismatch", "verdict and salt are not what was committed", status=409)
    if not panel.is_revealing(params, submission):
        raise ProtocolError("not_yet", "not all validators have committed", status=409)
    _require_verdict(submission, reveal.verdict, now)
    return row


def _require_verdict(row: SubmissionRow, verdict: messages.Verdict, now: float) -> None:
    if (verdict.receipt_hash, verdict.work_key) != (row.receipt_hash, row.work_key):
        raise ProtocolError("bad_verdict", "the verdict is about another submission")
    if verdict.deadline < now + MIN_VERDICT_SECONDS:
        raise ProtocolError("bad_verdict", "the verdict expires before a court would hear it")
    try:
        reason = Reason(verdict.reason)
    except ValueError as error:
        raise ProtocolError("bad_verdict", f"there is no reason {verdict.reason}") from error
    rejects = verdict.outcome == Decision.REJECT
    if reason.severity != verdict.severity or rejects == (reason is Reason.NONE) or reason in OURS:
        raise ProtocolError("bad_verdict", "outcome, reason and severity do not fit each other")
    units = row.receipt_units if verdict.outcome == Decision.ACCEPT else 0
    if verdict.units != units:  # accepted work is paid as its receipt says, which the checks have counted
        raise ProtocolError("bad_verdict", f"the verdict has {verdict.units} units where {units} are due")


def _require_turn(repository: Repository, validator: str, judgement: int) -> JudgementRow:
    row = repository.get_judgement(judgement)
    if row is None or row.validator != validator:
        raise ProtocolError("not_your_judgement", f"judgement {judgement} is not that of {validator}", status=403)
    if row.lapsed:
        raise ProtocolError("judgement_lapsed", "the judgement took too long", status=409)
    return row


def _find_place(
    params: PoolParams,
    row: SubmissionRow,
    turn: JudgementRow,
    query: TurnQuery,
    *,
    standing: turn_order.Standing,
    now: float,
) -> int | None:
    """Return the place of the validator among those that are able to judge the submission. None if it may not yet."""
    able = exact_lane.list_able(row, query.validators, standing)
    return turn_order.find_place(
        params, row, turn, validator=query.validator, validators=able, standing=standing, now=now
    )


def is_judged(row: SubmissionRow) -> bool:
    """Whether turns about a submission may be taken: it is undecided, or a rejection that needs signatures."""
    return row.state in JUDGED_STATES


def _require_submission(repository: Repository, judgement: JudgementRow) -> SubmissionRow:
    row = repository.get_submission(judgement.receipt_hash)
    if row is None:
        raise ProtocolError("unknown_submission", "the judgement's submission is gone", status=404)
    return row


def apply(repository: Repository, params: PoolParams, look: Look, *, validators: Container[str], now: float) -> None:
    """Record what a look found, with what it means for validators and nodes; then pack the step and plan, once.

    An acceptance by cheap checks is dropped where an earlier ruling of the same look ordered the replay of that work.
    """
    for validator in look.late:
        standing = repository.require_validator(validator)
        standing.lapsed, standing.failed_at = standing.lapsed + 1, now
    silent = [exact_lane.list_silent(row) for row, _, _ in look.decided]
    exact_lane.record_passes(repository, [*look.passed, *chain.from_iterable(silent)], now=now)
    for row, agreed, replayed in look.decided:
        if replayed != bool(row.audited):
            continue
        for validator in panel.list_contradicted(params, row, agreed):
            standing = repository.require_validator(validator)
            standing.contradicted, standing.failed_at = standing.contradicted + 1, now
        ruling = agreed
        if row.canary != CanaryKind.ORDINARY:  # whatever they say: no pay, no case, nothing to learn from
            ruling = Ruling(Decision.UNKNOWN, Reason.CANARY, agreed.evidence_hash)
        _record(row, ruling, now)
        _count(repository, row, ruling)
        _judge_node(repository, params, row, ruling)
    if look.decided:
        sum_limits.add_accepted(repository, params, [row for row, _, _ in look.decided], validators=validators)
        repository.flush()
        close_step(repository, params)
        plan_tasks(repository, params)


def _record(row: SubmissionRow, ruling: Ruling, now: float) -> None:
    is_accepted = ruling.decision is Decision.ACCEPT
    row.decision, row.reason, row.evidence_hash, row.decided_at = (
        ruling.decision,
        ruling.reason,
        ruling.evidence_hash,
        now,
    )
    row.units, row.live_groups = (row.receipt_units, ruling.live_groups) if is_accepted else (0, row.live_groups)
    is_hard = ruling.reason.severity is Severity.HARD
    after = SubmissionState.ACCEPTED if is_accepted else SubmissionState.REJECTED if is_hard else SubmissionState.VOID
    row.state = require_move(SUBMISSION_MOVES, row.state, after)
    if is_hard:
        panel.close_uncommitted(row)


def _count(repository: Repository, row: SubmissionRow, ruling: Ruling) -> None:
    for turn in turn_order.list_current(row):
        if turn.validator is not None and turn.verdict is not None:
            repository.require_validator(turn.validator).judged += 1
    step = repository.get_step(row.policy_version)
    if step is not None and ruling.decision is Decision.ACCEPT:
        step.accepted_groups += row.groups


def _judge_node(repository: Repository, params: PoolParams, row: SubmissionRow, ruling: Ruling) -> None:
    node = nodes.require_node(repository, row.node)
    if ruling.decision is Decision.ACCEPT:
        owner = repository.require_contributor(row.contributor)
        node.accepted, owner.accepted = node.accepted + 1, owner.accepted + 1
        nodes.take_back_strike(repository, params, row.contributor)
    elif ruling.reason.severity is Severity.HARD:
        nodes.condemn(repository, node=node, contributor=row.contributor, why=nodes.REJECTED)
    elif ruling.reason is Reason.INEXACT:
        nodes.note_fault(repository, params, node=node, contributor=row.contributor)
    elif ruling.reason not in OURS or (ruling.reason is Reason.UNDECIDED and is_rejected(params, row)):
        nodes.add_strike(repository, params, row.contributor)
