"""The exact lane: which validators may judge work under an execution contract, and whether there are enough of them.

A contract is named by its digest. The empty digest means the calibrated lane, where every validator may judge.
Validators name their contract whenever they ask for a turn, and nodes when they register.

Naming a contract proves nothing, so a validator counts only while it answers turns of its contract. It lets a turn pass
in three cases: it does not take a turn that it may take (`list_passed`), it takes the turn and lets it lapse, or its
verdict is unknown and another validator decides. It then does not count for some time, which doubles with each pass
until it decides a replay.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from coordinator.db.models import SubmissionRow, TurnRow, ValidatorRow
from coordinator.db.repository import Repository
from coordinator.domain import turn_order
from covey.errors import ProtocolError
from covey.protocol.ids import Address, Hash
from covey.protocol.params import PoolParams
from covey.protocol.verdict import Decision

ABSENT_SECONDS = 600.0
"""Time in seconds after a validator's last request from which it no longer counts. It is long enough for a restart."""
EXCLUDED_SECONDS = 600.0
"""Time in seconds for which a validator does not count after its first pass."""
RETURN_SECONDS = 3600.0
"""Minimum time in seconds between two arrivals that restart a validator's time for a turn (`compute_patience`)."""
MAX_DOUBLINGS = 10
"""Maximum number of times that EXCLUDED_SECONDS doubles, which is up to a week."""


def list_able(
    row: SubmissionRow, validators: Sequence[Address], standing: Mapping[str, ValidatorRow]
) -> Sequence[Address]:
    """Return the validators that can judge a submission. In the exact lane, these are the ones with its contract."""
    if not row.contract:
        return validators
    contracts = {address: known.contract for address, known in standing.items()}
    return [address for address in validators if contracts.get(address) == row.contract]


def count_validators(repository: Repository, params: PoolParams, *, now: float) -> dict[Hash, int]:
    """Return the number of validators that serve each contract of the pool, in the order of its parameters.

    Validators count if they are present and have not let a turn of the contract pass recently.
    """
    digests = params.verification.list_digests()
    if not digests:
        return {}
    serving = [row.contract for row in repository.list_validators().values() if _is_serving(row, now)]
    return {digest: serving.count(digest) for digest in digests}


def _is_serving(row: ValidatorRow, now: float) -> bool:
    is_excluded = row.passes > 0 and now < row.passed_at + compute_exclusion(row.passes)
    return row.seen_at >= now - ABSENT_SECONDS and not is_excluded


def compute_exclusion(passes: int) -> float:
    """Return for how many seconds after its last pass a validator does not count, given its number of passes."""
    return EXCLUDED_SECONDS * 2.0 ** min(passes - 1, MAX_DOUBLINGS)


def compute_patience(params: PoolParams) -> float:
    """Return how many seconds a validator has to take a turn before it has let the turn pass.

    A validator that is busy commits to other verdicts in that time, which restarts it.
    """
    return ABSENT_SECONDS + params.judgement_seconds


def note_asking(repository: Repository, validator: Address, contract: str, *, now: float) -> None:
    """Record that a validator asks for work under an execution contract."""
    row = repository.require_validator(validator)
    is_new = row.contract != contract or row.seen_at < now - ABSENT_SECONDS
    if is_new and row.active_at < now - RETURN_SECONDS:  # Coming and going often must not gain time.
        row.active_at = now
    row.seen_at, row.contract = now, contract


def note_commitment(repository: Repository, row: SubmissionRow, validator: str, *, now: float) -> None:
    """Record that a validator is active, because it has committed to a verdict in any lane."""
    repository.require_validator(validator).active_at = now


def note_verdict(repository: Repository, row: SubmissionRow, turn: TurnRow) -> None:
    """Record that a validator revealed a verdict. One that decides a replay under the contract resets its passes."""
    if not row.contract or not turn.full or turn.verdict is None or turn.verdict.outcome == Decision.UNKNOWN:
        return
    known = repository.require_validator(turn.verdict.validator)
    if known.passes and known.failed_at == known.passed_at:  # Its last failure was a pass.
        known.failed_at = 0.0
    known.passes = 0


def list_passed(
    params: PoolParams, row: SubmissionRow, able: Sequence[Address], standing: Mapping[str, ValidatorRow], *, now: float
) -> list[Address]:
    """Return the validators that have let a free turn of a submission's contract pass.

    They could have taken the turn for `compute_patience` seconds, and have committed to no verdict in that time.
    """
    since = now - compute_patience(params)
    free = [turn for turn in turn_order.list_current(row) if turn.validator is None and not turn.lapsed]
    if not row.contract or not free or free[0].opened_at > since:
        return []
    find_place = partial(turn_order.find_place, params, row, free[0], validators=able, standing=standing, now=since)
    idle = [address for address in able if address in standing and standing[address].active_at <= since]
    return [address for address in idle if find_place(validator=address) is not None]


def list_silent(row: SubmissionRow) -> list[str]:
    """Return the validators whose verdict on a replay under the contract is unknown although another one decided."""
    if not row.contract or not row.audited:
        return []
    verdicts = [turn.verdict for turn in turn_order.list_current(row) if turn.verdict is not None]
    decisive = {verdict.validator for verdict in verdicts if verdict.outcome != Decision.UNKNOWN}
    silent = {verdict.validator for verdict in verdicts} - decisive
    return list[str](sorted(silent)) if decisive else []


def record_passes(repository: Repository, validators: Iterable[str], *, now: float) -> None:
    """Record that validators have let a turn of their contract pass. They also come last in the order for some time."""
    for validator in set(validators):
        row = repository.require_validator(validator)
        row.passes, row.passed_at, row.active_at, row.failed_at = row.passes + 1, now, now, now


def list_served(repository: Repository, params: PoolParams, *, now: float) -> list[str]:
    """Return the lanes in which tasks are assigned.

    They are the contracts with a quorum of validators and, unless the pool's mode is "exact", the calibrated lane "".
    """
    counts = count_validators(repository, params, now=now)
    served: list[str] = [digest for digest, count in counts.items() if count >= params.quorum]
    return served if params.verification.mode == "exact" else ["", *served]


def require_served(repository: Repository, params: PoolParams, contract: str, *, now: float) -> None:
    """Return if tasks are assigned under a contract, or in the calibrated lane if `contract` is empty.

    Raises ProtocolError("wrong_contract") if the pool does not accept such work.
    Raises ProtocolError("no_validators") while too few validators have the contract. Its status makes clients retry.
    """
    rules = params.verification
    if contract not in rules.list_digests() and (contract or rules.mode == "exact"):
        named = f"the execution contract {contract}" if contract else "work without an execution contract"
        raise ProtocolError(
            "wrong_contract", f"the pool does not accept {named}. Check the machine with covey doctor", status=403
        )
    if contract not in list_served(repository, params, now=now):
        count = count_validators(repository, params, now=now)[Hash(contract)]
        raise ProtocolError(
            "no_validators",
            f"{count} validators have the execution contract {contract}, but {params.quorum} must judge its work. Wait "
            "for more validators with this contract, or use a machine with another contract of the pool",
            status=503,
        )
