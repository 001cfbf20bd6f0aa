"""Gives validators their turns, and records their commitments and revealed verdicts, for many validators at once.

`turn_order` decides who may take a turn, and `panel` and `judging` decide what the verdicts mean. A verdict is revealed
only after all validators of its submission have committed, so that no validator can copy another.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Literal, NamedTuple

from coordinator.db.judging_queries import Turn
from coordinator.db.models import SubmissionRow, TurnRow
from coordinator.db.repository import Repository
from coordinator.domain import exact_lane, panel, sum_limits, turn_order
from covey.errors import CoveyError, ProtocolError
from covey.protocol import messages
from covey.protocol.ids import Address, Hash
from covey.protocol.params import PoolParams
from covey.protocol.running_sums import Sums
from covey.protocol.verdict import Decision, Reason, compute_severity

MIN_VERDICT_SECONDS = 3600
"""Minimum time in seconds for which a revealed verdict must stay valid, so that it can be brought to the court."""
SLOW_SHARE = 0.2
"""Last part of `judgement_seconds`, as a fraction, in which a commitment counts as slow. Validators that always answer
at the last moment delay work without letting a turn lapse."""
TURNS = "turns"
"""Name of the fact that changes whenever there may be work for a waiting validator."""
MAX_ORDERS = 16
"""Maximum number of orders in one response to a validator."""
PAGES = (8, 8, 16, 32, 64, 128, 256)
"""Sizes of the successive pages in which turns are read until there is one for the validator."""
OURS = (Reason.UNDECIDED, Reason.CANARY)
"""Reasons that only the coordinator gives. Validators may not use them, and nodes are not blamed for them."""


def announce_turns(repository: Repository) -> None:
    """Wake waiting validators, because there are new turns, or because verdicts may be revealed."""
    repository.set_fact(TURNS, repository.get_fact(TURNS) + 1)


class TurnQuery(NamedTuple):
    """A validator's request for orders. Example: TurnQuery(address, validators, holding=(7,), free_turns=2)."""

    validator: Address
    validators: Sequence[Address]
    """All active validators of the pool."""
    holding: Sequence[int]
    """Ids of the turns that the validator was judging when it asked. Their verdicts may be ready to be revealed."""
    free_turns: int
    """Number of new turns for which the validator has room."""
    free_replays: int = 1
    """Maximum number of whole replays among the new turns."""
    contract: str = ""
    """Digest of the validator's execution contract. Empty if it judges only in the calibrated lane."""


class Order(NamedTuple):
    """An instruction to a validator: judge a submission, or reveal its verdict about it."""

    kind: Literal["judge", "reveal"]
    turn: TurnRow
    row: SubmissionRow


def has_order(repository: Repository, params: PoolParams, query: TurnQuery, *, now: float) -> bool:
    """Return whether `take_orders` would return any order now. Changes nothing."""
    if repository.has_ready(query.validator) or _list_lost(repository, query):
        return True
    return next(_find_free(repository, params, query, now=now), None) is not None


def take_orders(repository: Repository, params: PoolParams, query: TurnQuery, *, now: float) -> list[Order]:
    """Return at most MAX_ORDERS orders for a validator, and give it free turns.

    Verdicts come first whose submission has all commitments, so that they can be revealed. Then come turns that the
    validator has taken but does not hold, because a response was lost or the validator restarted. Their deadlines do
    not change. Last come as many free turns as the validator has room for.
    """
    orders = _list_known(repository, params, query)
    room = min(
        query.free_turns - sum(order.kind == "judge" for order in orders),
        panel.MAX_HELD - len(repository.list_held(query.validator)),
        MAX_ORDERS - len(orders),
    )
    replays = query.free_replays - sum(order.kind == "judge" and order.turn.full for order in orders)
    for order, place in islice(_find_free(repository, params, query, now=now), max(0, room)):
        replays -= order.turn.full
        if replays < 0:
            break  # Later turns wait for the next poll, because older ones come first.
        panel.take(params, order.row, order.turn, validator=query.validator, place=place, now=now)
        orders.append(order)
    return orders


def _list_known(repository: Repository, params: PoolParams, query: TurnQuery) -> list[Order]:
    """Return orders for the verdicts that a validator may reveal, and for the turns that it has lost."""
    ready = _page(partial(repository.list_ready, query.validator))
    known = (Order("reveal", turn, row) for turn, row in ready if panel.is_revealing(params, row))
    lost = (Order("judge", *each) for each in repository.load_turns(_list_lost(repository, query)).values())
    return list(islice(chain(known, lost), MAX_ORDERS))


def _list_lost(repository: Repository, query: TurnQuery) -> list[int]:
    """Return the ids of uncommitted turns that a validator has taken but does not hold."""
    return [turn for turn in repository.list_held(query.validator) if turn not in query.holding]


def _find_free(
    repository: Repository, params: PoolParams, query: TurnQuery, *, now: float
) -> Iterator[tuple[Order, int]]:
    """Yield the free turns that a validator may take now, each with its place in the drawn order.

    A turn that has been taken since the query is left out. So are further turns of a submission that the validator
    judges by now.
    """
    if not query.free_turns or len(repository.list_held(query.validator)) >= panel.MAX_HELD:
        return
    standing = repository.list_validators()
    for turn, row in _page(partial(repository.list_free, query.contract)):
        if row.draw is None or turn.validator is not None:  # It lacks a draw if a reorganization removed its block.
            continue
        place = _find_place(params, row, turn, query, standing=standing, now=now)
        if place is not None:
            yield Order("judge", turn, row), place


def _page(
    read: Callable[..., list[tuple[TurnRow, SubmissionRow]]],
) -> Iterator[tuple[TurnRow, SubmissionRow]]:
    """Yield turns from pages of growing size, because the first few usually suffice."""
    after = 0
    for size in PAGES:
        page = read(after=after, limit=size)
        yield from page
        if len(page) < size:
            return
        after = page[-1][0].id


class Commitment(NamedTuple):
    """A validator's commitment to a verdict. Example: Commitment(address, judgement=7, commitment=digest)."""

    validator: Address
    judgement: int
    """Id of the turn."""
    commitment: Hash


def record_commits(
    repository: Repository, params: PoolParams, commits: Sequence[Commitment], *, now: float
) -> list[CoveyError | None]:
    """Record commitments, and return the error of each, or None. Repeating the same commitment is not an error.

    Errors are ProtocolError("not_your_judgement"), ProtocolError("judgement_lapsed") and
    ProtocolError("already_committed").
    """
    turns = repository.load_turns({each.judgement for each in commits})
    errors: list[CoveyError | None] = []
    for each in commits:
        try:
            turn, row = _require_turn(turns, each.validator, each.judgement)
            _record_commit(repository, params, turn, row, each.commitment, now=now)
            errors.append(None)
        except CoveyError as error:
            errors.append(error)
    return errors


def _record_commit(
    repository: Repository, params: PoolParams, turn: TurnRow, row: SubmissionRow, commitment: Hash, *, now: float
) -> None:
    if turn.commitment not in (None, commitment):
        raise ProtocolError("already_committed", "the turn already has another commitment", status=409)
    if turn.commitment is None and turn.validator is not None:
        turn.commitment = commitment
        if turn.deadline - now < SLOW_SHARE * params.judgement_seconds:
            repository.require_validator(turn.validator).slow += 1
        exact_lane.note_commitment(repository, row, turn.validator, now=now)
        panel.start_reveals(params, row, now)
        if panel.is_revealing(params, row):
            announce_turns(repository)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reveal:
    """A signed verdict that a validator reveals after it has committed to it."""

    judgement: int
    """Id of the turn."""
    verdict: messages.Verdict
    digest: Hash
    """EIP-712 digest of the verdict."""
    salt: Hash
    signature: str
    live_groups: int | None
    """Number of live groups according to the evidence. None if the evidence has no valid number."""
    sums: Sums | None
    """Sums of the replay according to the evidence. None if the evidence has no valid sums."""
    is_in_drawn_rows: bool = False
    """Whether the evidence of a rejection says that the drawn rows alone prove its reason."""


def check_reveals(
    repository: Repository, params: PoolParams, reveals: Sequence[Reveal], *, now: float
) -> list[Turn | CoveyError]:
    """Return the turn of each verdict that may be revealed now, or its error.

    Errors are ProtocolError with the codes "not_your_judgement", "judgement_lapsed", "commitment_mismatch", "not_yet"
    and "bad_verdict".
    """
    turns = repository.load_turns({each.judgement for each in reveals})
    found: list[Turn | CoveyError] = []
    for each in reveals:
        try:
            turn, row = _require_turn(turns, each.verdict.validator, each.judgement)
            _require_reveal(params, turn, row, each, now)
            found.append((turn, row))
        except CoveyError as error:
            found.append(error)
    return found


def record_reveals(
    repository: Repository, params: PoolParams, reveals: Sequence[Reveal], *, now: float
) -> list[CoveyError | None]:
    """Record verdicts with the live groups and sums in their evidence, and return the error of each, or None.

    Errors are those of `check_reveals`.
    """
    checked = check_reveals(repository, params, reveals, now=now)
    for reveal, found in zip(reveals, checked, strict=True):
        if isinstance(found, CoveyError):
            continue
        turn, row = found
        turn.verdict, turn.signature, turn.live_groups = reveal.verdict, reveal.signature, reveal.live_groups
        turn.drawn_rows_false = reveal.is_in_drawn_rows and reveal.verdict.outcome == Decision.REJECT
        turn.sums = sum_limits.find_countable(params, row, turn, reveal.sums)
        exact_lane.note_verdict(repository, row, turn)
        row.next_check_at = now
    return [found if isinstance(found, CoveyError) else None for found in checked]


def _require_reveal(params: PoolParams, turn: TurnRow, row: SubmissionRow, reveal: Reveal, now: float) -> None:
    if turn.commitment != messages.compute_commitment(reveal.digest, reveal.salt):
        raise ProtocolError("commitment_mismatch", "the verdict and the salt do not match the commitment", status=409)
    if not panel.is_revealing(params, row):
        raise ProtocolError("not_yet", "not all validators have committed", status=409)
    _require_verdict(turn, row, reveal.verdict, now)


def _require_verdict(turn: TurnRow, row: SubmissionRow, verdict: messages.Verdict, now: float) -> None:
    if (verdict.receipt_hash, verdict.work_key) != (row.receipt_hash, row.work_key):
        raise ProtocolError("bad_verdict", "the verdict is about another submission")
    if verdict.deadline < now + MIN_VERDICT_SECONDS:
        raise ProtocolError(
            "bad_verdict", f"the verdict must be valid for at least {MIN_VERDICT_SECONDS} s, for the court to hear it"
        )
    try:
        decision, reason = Decision(verdict.outcome), Reason(verdict.reason)
    except ValueError as error:
        message = f"outcome {verdict.outcome} or reason {verdict.reason} does not exist"
        raise ProtocolError("bad_verdict", message) from error
    rejects = decision is Decision.REJECT
    severity = compute_severity(decision, reason, is_whole=turn.full)
    if severity != verdict.severity or rejects == (reason is Reason.NONE) or reason in OURS:
        raise ProtocolError("bad_verdict", "the outcome, the reason and the severity contradict each other")
    units = row.receipt_units if verdict.outcome == Decision.ACCEPT else 0
    if verdict.units != units:  # Accepted work is paid by the units of its receipt, which the checks have verified.
        raise ProtocolError("bad_verdict", f"the verdict has {verdict.units} units instead of {units}")


def _require_turn(turns: Mapping[int, Turn], validator: str, judgement: int) -> Turn:
    """Return a validator's turn that has not lapsed.

    Raises ProtocolError("not_your_judgement") or ProtocolError("judgement_lapsed").
    """
    found = turns.get(judgement)
    if found is None or found[0].validator != validator:
        raise ProtocolError("not_your_judgement", f"judgement {judgement} does not belong to {validator}", status=403)
    if found[0].lapsed:
        raise ProtocolError("judgement_lapsed", f"judgement {judgement} has lapsed", status=409)
    return found


def _find_place(
    params: PoolParams,
    row: SubmissionRow,
    turn: TurnRow,
    query: TurnQuery,
    *,
    standing: turn_order.Standing,
    now: float,
) -> int | None:
    """Return the place of the validator among those that can judge the submission. None if it may not take the turn."""
    able = exact_lane.list_able(row, query.validators, standing)
    return turn_order.find_place(
        params, row, turn, validator=query.validator, validators=able, standing=standing, now=now
    )
