"""Queries about epochs, their submissions, and the rewards that contributors have earned by their ends.

They are methods of `coordinator.db.repository.Repository`.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

from sqlalchemy import ColumnElement, CursorResult, delete, func, insert, select, update
from sqlalchemy.orm import Session

from coordinator.db.models import CaseRow, EpochRow, RewardRow, StepRow, SubmissionRow, TurnRow
from coordinator.db.node_queries import cut
from coordinator.db.omission_queries import ChallengeRow
from covey.protocol.ids import Address
from covey.protocol.status import CaseState, StepState, SubmissionState
from covey.protocol.verdict import Decision
from covey.protocol.verdict_fees import JudgedWork

_UNPOSTED = EpochRow.posted_block.is_(None)
_UNSETTLED: tuple[ColumnElement[bool], ...] = (
    SubmissionRow.state != SubmissionState.SUBMITTED,
    SubmissionRow.epoch.is_(None),
    SubmissionRow.receipt_hash.not_in(select(ChallengeRow.receipt_hash).where(ChallengeRow.is_paid)),
)


class Unsettled(NamedTuple):
    """Sums over the decided submissions that are in no epoch and that the operator's bond has not paid.

    A disabled epoch has released its submissions.
    """

    submissions: int
    units: int
    least_units: int
    """Smallest number of units among the submissions. 0 if there are no submissions."""
    first_decided_at: float
    """Unix time of the earliest decision. 0 if there are no submissions."""


class EpochQueries:
    """Repository queries about settlement."""

    session: Session

    def sum_unsettled(self) -> Unsettled:
        query = select(
            func.count(),
            func.coalesce(func.sum(SubmissionRow.units), 0),
            func.coalesce(func.min(SubmissionRow.units), 0),
            func.min(SubmissionRow.decided_at),
        )
        count, units, least, decided_at = self.session.execute(query.where(*_UNSETTLED)).one()
        return Unsettled(count, int(units), least, decided_at or 0.0)

    def list_unsettled(self, among: Collection[str] | None = None) -> list[tuple[str, int]]:
        """Return receipt hash and units of each decided submission that is in no epoch and not paid, by task.

        `among` restricts the result to these receipt hashes. None means all.
        """
        query = select(SubmissionRow.receipt_hash, SubmissionRow.units).where(*_UNSETTLED).order_by(SubmissionRow.task)
        parts = [query] if among is None else [query.where(SubmissionRow.receipt_hash.in_(part)) for part in cut(among)]
        return [(row[0], row[1]) for part in parts for row in self.session.execute(part)]

    def sum_settled_units(self, *, until: int) -> dict[tuple[str, int], int]:
        """Return the units by contributor and epoch, up to and including epoch `until`. Disabled epochs are empty."""
        columns = SubmissionRow.contributor, SubmissionRow.epoch
        query = select(*columns, func.sum(SubmissionRow.units)).where(SubmissionRow.epoch <= until).group_by(*columns)
        return {(row[0], row[1] or 0): int(row[2]) for row in self.session.execute(query)}

    def list_final_times(self) -> dict[int, int]:
        """Return the Unix times from which rewards can be claimed, by epoch, of all posted epochs."""
        query = select(EpochRow.number, EpochRow.final_at).where(EpochRow.final_at.is_not(None))
        return {row[0]: row[1] or 0 for row in self.session.execute(query)}

    def list_settled(self, epoch: int) -> Sequence[SubmissionRow]:
        """Return the submissions of an epoch, by task."""
        query = select(SubmissionRow).where(SubmissionRow.epoch == epoch)
        return self.session.scalars(query.order_by(SubmissionRow.task)).all()

    def put_into_epoch(self, epoch: int, receipt_hashes: Collection[str]) -> None:
        """Put submissions into an epoch. Those that are in an epoch already stay there."""
        for part in cut(receipt_hashes):
            unheld = update(SubmissionRow).where(SubmissionRow.receipt_hash.in_(part), SubmissionRow.epoch.is_(None))
            self.session.execute(unheld.values(epoch=epoch))

    def release_from_epoch(self, epoch: int) -> None:
        """Take all submissions out of an epoch. Settled ones that were accepted return to the state ACCEPTED."""
        held = update(SubmissionRow).where(SubmissionRow.epoch == epoch)
        is_settled = SubmissionRow.state == SubmissionState.SETTLED
        is_accepted = SubmissionRow.decision == Decision.ACCEPT
        self.session.execute(held.where(is_settled, is_accepted).values(state=SubmissionState.ACCEPTED))
        self.session.execute(held.values(epoch=None))

    def mark_settled(self, epoch: int, *, limit: int) -> int:
        """Mark at most `limit` submissions of an epoch as settled, and return how many were marked."""
        unmarked = select(SubmissionRow.receipt_hash).where(
            SubmissionRow.epoch == epoch, SubmissionRow.state != SubmissionState.SETTLED
        )
        settled = update(SubmissionRow).where(SubmissionRow.receipt_hash.in_(unmarked.limit(limit)))
        result = self.session.execute(
            settled.values(state=SubmissionState.SETTLED).execution_options(synchronize_session=False)
        )
        return cast("CursorResult[Any]", result).rowcount

    # -- epochs

    def list_epochs(self) -> Sequence[EpochRow]:
        return self.session.scalars(select(EpochRow).order_by(EpochRow.number)).all()

    def list_unposted(self) -> Sequence[EpochRow]:
        """Return the epochs that are not on chain, oldest first. The newest ones may still be closing."""
        return self.session.scalars(select(EpochRow).where(_UNPOSTED).order_by(EpochRow.number)).all()

    def list_unmarked(self) -> list[int]:
        """Return the numbers of the posted epochs whose submissions are not all marked as settled."""
        query = select(EpochRow.number).where(~_UNPOSTED, EpochRow.settled.is_(False), EpochRow.disabled.is_(False))
        return list(self.session.scalars(query.order_by(EpochRow.number)))

    def count_unposted_leaves(self) -> int:
        """Return the number of submissions in epochs that are not on chain."""
        query = select(func.count()).select_from(SubmissionRow).join(EpochRow, EpochRow.number == SubmissionRow.epoch)
        return self.session.scalar(query.where(_UNPOSTED)) or 0

    def list_disabled(self) -> list[int]:
        """Return the numbers of the epochs that the arbiter has disabled."""
        return list(self.session.scalars(select(EpochRow.number).where(EpochRow.disabled).order_by(EpochRow.number)))

    def get_last_epoch(self) -> EpochRow | None:
        """Return the last epoch, or None if there is none."""
        return self.session.scalars(select(EpochRow).order_by(EpochRow.number.desc()).limit(1)).first()

    def get_last_epoch_number(self) -> int | None:
        """Return the number of the last epoch, or None if there is none."""
        return self.session.scalar(select(func.max(EpochRow.number)))

    def get_epoch(self, number: int) -> EpochRow | None:
        return self.session.get(EpochRow, number)

    def require_epoch(self, number: int, *, closed_at: float) -> EpochRow:
        """Return the row of an epoch. If it has none, add one for an epoch that is closing."""
        row = self.get_epoch(number)
        if row is None:
            row = EpochRow(number=number, work_root="", reward_root="", data_hash="", leaf_count=0, units=0)
            row.previous_hash, row.closed_at, row.disabled = "", closed_at, False
            self.session.add(row)
            self.session.flush()
        return row

    def delete_epoch(self, number: int) -> None:
        """Delete an epoch that has no submissions."""
        self.session.execute(delete(EpochRow).where(EpochRow.number == number))

    def has_epoch_file(self, data_hash: str) -> bool:
        """Return whether this hash names the file with an epoch's leaves and rewards."""
        return self.session.scalar(select(EpochRow.number).where(EpochRow.data_hash == data_hash).limit(1)) is not None

    def is_needed(self, epoch: int, *, oldest_version: int) -> bool:
        """Return whether the files of an epoch's submissions may still be read.

        They may if a case about one is open, if one is in a batch that is not trained yet, or if one can still be
        packed into a batch.
        """
        held = select(SubmissionRow.receipt_hash).where(SubmissionRow.epoch == epoch)
        in_case = held.join(CaseRow, CaseRow.receipt_hash == SubmissionRow.receipt_hash)
        in_batch = held.join(StepRow, StepRow.number == SubmissionRow.step)
        may_be_packed = SubmissionRow.step.is_(None), SubmissionRow.policy_version >= oldest_version
        reasons = (
            in_case.where(CaseRow.state == CaseState.LOCKED),
            in_batch.where(StepRow.state != StepState.TRAINED),
            held.where(SubmissionRow.decision == Decision.ACCEPT, *may_be_packed),
        )
        return any(self.session.scalar(reason.limit(1)) is not None for reason in reasons)

    def list_files(self, epoch: int, *, after_task: int, limit: int) -> list[tuple[int, int, str]]:
        """Return task, lease and work key of the submissions of an epoch, by task, from the task after `after_task`."""
        query = select(SubmissionRow.task, SubmissionRow.lease, SubmissionRow.work_key)
        query = query.where(SubmissionRow.epoch == epoch, SubmissionRow.task > after_task)
        found = self.session.execute(query.order_by(SubmissionRow.task).limit(limit))
        return [(row[0], row[1], row[2]) for row in found]

    # -- rewards

    def list_rewards(self, epoch: int) -> dict[str, int]:
        """Return each contributor's total earnings up to the end of an epoch, in the token's smallest unit."""
        query = select(RewardRow.contributor, RewardRow.cumulative).where(RewardRow.epoch == epoch)
        return {row[0]: int(row[1]) for row in self.session.execute(query.order_by(RewardRow.contributor))}

    def list_judged(self, epoch: int) -> list[JudgedWork]:
        """Return the decisions of an epoch's submissions, by task, with their revealed verdicts."""
        query = select(SubmissionRow.receipt_hash, SubmissionRow.decision, TurnRow.validator, TurnRow.verdict)
        query = query.join(TurnRow, TurnRow.receipt_hash == SubmissionRow.receipt_hash)
        query = query.where(SubmissionRow.epoch == epoch, TurnRow.verdict.is_not(None), TurnRow.lapsed.is_(False))
        works: dict[str, JudgedWork] = {}
        verdicts: dict[str, list[tuple[Address, int]]] = defaultdict(list)
        for receipt_hash, decision, validator, verdict in self.session.execute(query.order_by(SubmissionRow.task)):
            if decision is not None and validator is not None and verdict is not None:
                verdicts[receipt_hash].append((Address(validator), verdict.outcome))
                works[receipt_hash] = JudgedWork(decision=decision, verdicts=verdicts[receipt_hash])
        return list(works.values())

    def sum_paid_verdicts(self, *, before: int | None = None, account: str | None = None) -> Counter[str]:
        """Return how many verdicts of each account are paid by epochs that are not disabled.

        `before` restricts them to epochs before that one, and `account` to one account.
        """
        query = select(RewardRow.contributor, func.sum(RewardRow.verdicts))
        query = query.join(EpochRow, EpochRow.number == RewardRow.epoch)
        query = query.where(EpochRow.disabled.is_(False), RewardRow.verdicts > 0)
        if before is not None:
            query = query.where(RewardRow.epoch < before)
        if account is not None:
            query = query.where(RewardRow.contributor == account)
        return Counter({row[0]: int(row[1]) for row in self.session.execute(query.group_by(RewardRow.contributor))})

    def sum_verdicts(self, *, since: float) -> int:
        """Return how many verdicts are paid by the epochs that began since a time in Unix seconds."""
        query = select(func.coalesce(func.sum(EpochRow.verdicts), 0))
        query = query.where(EpochRow.closed_at >= since, EpochRow.disabled.is_(False))
        return int(self.session.scalar(query) or 0)

    def clear_rewards(self, epoch: int) -> None:
        self.session.execute(delete(RewardRow).where(RewardRow.epoch == epoch))

    def add_rewards(self, epoch: int, rewards: Mapping[Address, int], verdicts: Mapping[Address, int]) -> None:
        """Add the accounts' total earnings up to the end of an epoch, and its paid verdicts, by one statement."""
        rows = [
            {"epoch": epoch, "contributor": who, "cumulative": str(amount), "verdicts": verdicts.get(who, 0)}
            for who, amount in rewards.items()
        ]
        if rows:
            self.session.execute(insert(RewardRow), rows)
