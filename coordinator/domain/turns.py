"""What validators ask for and send: turns, commitments and revealed verdicts, of many validators at a time.

Who may take a turn is in `turn_order`, and what verdicts decide in `panel` and `judging`. A verdict is revealed only
after all validators of its submission have committed, so that none can copy another.
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
from covey.protocol.verdict import Decision, Reason

MIN_VERDICT_SECONDS = 3600
"""A verdict must stay valid long enough to be brought to the court."""
SLOW_SHARE = 0.2
"""Share of `judgement_seconds` at their end in which a commitment counts as slow. Validators that always answer at the
last moment delay work without letting a turn lapse."""
TURNS = "turns"
"""Name of the fact that changes whenever there may be something to do for a validator that waits."""
MAX_ORDERS = 16
"""Maximum number of orders in one answer to a validator."""
PAGES = (8, 8, 16, 32, 64, 128, 256)
"""Numbers of turns that are read at a time until there is one for the validator."""
OURS = (Reason.UNDECIDED, Reason.CANARY)
"""Reasons that no validator gives and no node is blamed for."""


def announce_turns(repository: Repository) -> None:
    """Let validators that wait look for turns: there are new ones, or verdicts may be revealed."""
    repository.set_fact(TURNS, repository.get_fact(TURNS) + 1)


class TurnQuery(NamedTuple):
    """What a validator asks for. Example: TurnQuery(address, validators, holding=(7,), free_turns=2)."""

    validator: Address
    validators: Sequence[Address]
    """All active validators of the pool."""
    holding: Sequence[int]
    """Turns that it was judging when it asked. A verdict may be revealed although its turn is among them."""
    free_turns: int
    """Number of new turns that it has room for."""
    free_replays: int = 1
    """Maximum number of whole replays among them."""
    contract: str = ""
    """Digest of its execution contract. Empty: it judges in the calibrated lane alone."""


class Order(NamedTuple):
    """What a validator is to do next."""

    kind: Literal["judge", "reveal"]
    turn: TurnRow
    row: SubmissionRow


def has_order(repository: Repository, params: PoolParams, query: TurnQuery, *, now: float) -> bool:
    """Return whether `take_orders` would give a validator something to do now. Nothing is changed."""
    if repository.has_ready(query.validator) or _list_lost(repository, query):
        return True
    return next(_find_free(repository, params, query, now=now), None) is not None


def take_orders(repository: Repository, params: PoolParams, query: TurnQuery, *, now: float) -> list[Order]:
    """Return what a validator is to do next, at most MAX_ORDERS orders.

    First come verdicts to reveal, whose commitments are all in, and turns that it has taken and not committed to but
    does not hold: an answer may be lost, and a validator may be restarted. Their clocks go on. Then it takes as many
    free turns as it has room for.
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
    """Return what a validator is to reveal, and the turns that it has lost."""
    ready = _page(partial(repository.list_ready, query.validator))
    known = (Order("reveal", turn, row) for turn, row in ready if panel.is_revealing(params, row))
    lost = (Order("judge", *each) for each in repository.load_turns(_list_lost(repository, query)).values())
    return list(islice(chain(known, lost), MAX_ORDERS))


def _list_lost(repository: Repository, query: TurnQuery) -> list[int]:
    """Return the ids of turns that a validator has taken and not committed to, and does not hold."""
    return [turn for turn in repository.list_held(query.validator) if turn not in query.holding]


def _find_free(
    repository: Repository, params: PoolParams, query: TurnQuery, *, now: float
) -> Iterator[tuple[Order, int]]:
    """Yield the free turns that a validator may take now, each with its place in the drawn order.

    A turn that was taken meanwhile is not yielded, and neither is another one of a submission that it now judges.
    """
    if not query.free_turns or len(repository.list_held(query.validator)) >= panel.MAX_HELD:
        return
    standing = repository.list_validators()
    for turn, row in _page(partial(repository.list_free, query.contract)):
        if row.draw is None or turn.validator is not None:  # Without a draw: a reorganization removed its block.
            continue
        place = _find_place(params, row, turn, query, standing=standing, now=now)
        if place is not None:
            yield Order("judge", turn, row), place


def _page(
    read: Callable[..., list[tuple[TurnRow, SubmissionRow]]],
) -> Iterator[tuple[TurnRow, SubmissionRow]]:
    """Yield turns, of which few are read at first, because the first ones suffice as a rule."""
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
    """Note commitments, and return the error of each. The same commitment again is not an error.

    Errors are ProtocolError "not_your_judgement", "judgement_lapsed" and "already_committed".
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
        raise ProtocolError("already_committed", "another commitment was given", status=409)
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


def check_reveals(
    repository: Repository, params: PoolParams, reveals: Sequence[Reveal], *, now: float
) -> list[Turn | CoveyError]:
    """Return the turn of each verdict that may be revealed now, or its error.

    Errors are ProtocolError "not_your_judgement", "judgement_lapsed", "commitment_mismatch", "not_yet" and
    "bad_verdict".
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
    """Note verdicts, and the live groups and sums in their evidence. Errors are those of `check_reveals`."""
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
        raise ProtocolError("commitment_mismatch", "verdict and salt are not what was committed", status=409)
    if not panel.is_revealing(params, row):
        raise ProtocolError("not_yet", "not all validators have committed", status=409)
    _require_verdict(row, reveal.verdict, now)


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


def _require_turn(turns: Mapping[int, Turn], validator: str, judgement: int) -> Turn:
    """Return a turn of a validator that has not lapsed."""
    found = turns.get(judgement)
    if found is None or found[0].validator != validator:
        raise ProtocolError("not_your_judgement", f"judgement {judgement} is not that of {validator}", status=403)
    if found[0].lapsed:
        raise ProtocolError("judgement_lapsed", "the judgement took too long", status=409)
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
    """Return the place of the validator among those that are able to judge the submission. None if it may not yet."""
    able = exact_lane.list_able(row, query.validators, standing)
    return turn_order.find_place(
        params, row, turn, validator=query.validator, validators=able, standing=standing, now=now
    )
