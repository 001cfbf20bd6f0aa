"""All queries of the coordinator. `Repository` never commits. The code that opened the transaction does."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from sqlalchemy import ColumnElement, and_, func, literal_column, select, update
from sqlalchemy.orm import Session, selectinload

from coordinator.db.chain_queries import ChainQueries
from coordinator.db.epoch_queries import EpochQueries
from coordinator.db.judging_queries import JudgingQueries
from coordinator.db.models import (
    CaseRow,
    IdentityRow,
    StepRow,
    SubmissionRow,
    TaskRow,
    TurnRow,
    ValidatorRow,
)
from coordinator.db.node_queries import NodeQueries, cut
from coordinator.db.page_queries import PageQueries
from coordinator.db.rate_queries import RateQueries
from coordinator.db.sum_queries import RunningSumsQueries
from coordinator.db.task_queries import TaskQueries
from covey.protocol.status import CaseState, StepState, SubmissionState
from covey.protocol.verdict import HARD_REASONS, Decision

_IS_ACCEPTED = SubmissionRow.decision == Decision.ACCEPT
_IS_HARD = and_(
    SubmissionRow.reason > literal_column("0"),  # SQLite finds the index by the text of its condition.
    SubmissionRow.reason.in_(HARD_REASONS),
)
_HAS_RECEIPT = SubmissionRow.signature != ""
"""Submissions that were restored from the file of an epoch have no receipt (see `coordinator.domain.restoring`)."""
_SUMS = func.coalesce(func.sum(SubmissionRow.groups), 0), func.coalesce(func.sum(SubmissionRow.live_groups), 0)


def _is_unreplayed(contributor: str) -> tuple[ColumnElement[bool], ...]:
    return SubmissionRow.contributor == contributor, SubmissionRow.audited.is_not(True), SubmissionRow.epoch.is_(None)


def _is_unpacked(oldest_version: int) -> tuple[ColumnElement[bool], ...]:
    return _IS_ACCEPTED, SubmissionRow.step.is_(None), SubmissionRow.policy_version >= oldest_version


class Repository(
    ChainQueries, EpochQueries, JudgingQueries, NodeQueries, PageQueries, RateQueries, RunningSumsQueries, TaskQueries
):
    """All queries of the coordinator, within one transaction."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.kept = set[object]()

    def add(self, row: object) -> None:
        self.session.add(row)
        self.session.flush()

    def add_all(self, rows: Iterable[object]) -> None:
        """Add rows by as few statements as possible."""
        self.session.add_all(rows)
        self.session.flush()

    def flush(self) -> None:
        """Send pending changes to the database, so that the next query sees them."""
        self.session.flush()

    # -- steps

    def get_step(self, number: int) -> StepRow | None:
        """Return a step. The row stays in memory, because other items of a batch need it too."""
        row = self.session.get(StepRow, number)
        self.kept.add(row)
        return row

    def get_latest_step(self) -> StepRow | None:
        """Return the newest step whose policy is on chain, or None if there is none."""
        query = select(StepRow).where(StepRow.record_hash != "").order_by(StepRow.number.desc())
        return self.session.scalars(query.limit(1)).first()

    def list_publications(self, versions: range) -> Sequence[tuple[int, int]]:
        """Return the policies in `versions` that are on chain, each with the number of the block that published it."""
        query = select(StepRow.number, StepRow.block_number).where(
            StepRow.number.in_(versions), StepRow.record_hash != ""
        )
        return [(number, block) for number, block in self.session.execute(query.order_by(StepRow.number))]

    def get_open_step(self) -> StepRow | None:
        """Return the step whose batch is to be packed next, or None if there is none."""
        return self.session.scalars(select(StepRow).where(StepRow.state == StepState.OPEN)).first()

    def count_closed_batches(self) -> int:
        """Return the number of packed batches, which is also the step of the next batch."""
        return self.session.scalar(select(func.count()).where(StepRow.state != StepState.OPEN)) or 0

    def list_steps(self) -> Sequence[StepRow]:
        return self.session.scalars(select(StepRow).order_by(StepRow.number)).all()

    # -- submissions and judgements

    def get_submission(self, receipt_hash: str) -> SubmissionRow | None:
        return self.session.get(SubmissionRow, receipt_hash)

    def find_submission(self, *, task: int, lease: int) -> SubmissionRow | None:
        query = select(SubmissionRow).where(SubmissionRow.task == task, SubmissionRow.lease == lease)
        return self.session.scalars(query).first()

    def list_submissions_of(self, tasks: Collection[int]) -> Sequence[SubmissionRow]:
        """Return the submissions of some tasks."""
        found: list[SubmissionRow] = []
        for part in cut(tasks):
            found += self.session.scalars(select(SubmissionRow).where(SubmissionRow.task.in_(part)))
        return found

    def list_used_work_keys(self, work_keys: Collection[str]) -> set[str]:
        """Return the work keys among these that a submission already has."""
        found: set[str] = set()
        for part in cut(work_keys):
            found.update(self.session.scalars(select(SubmissionRow.work_key).where(SubmissionRow.work_key.in_(part))))
        return found

    def list_submissions(self, *states: SubmissionState) -> Sequence[SubmissionRow]:
        query = select(SubmissionRow).where(SubmissionRow.state.in_(states))
        return self.session.scalars(query.order_by(SubmissionRow.policy_version, SubmissionRow.task)).all()

    def list_unreplayed(self, contributor: str) -> Sequence[SubmissionRow]:
        """Return a contributor's undecided and accepted submissions that are in no epoch and not to be replayed."""
        query = select(SubmissionRow).where(
            *_is_unreplayed(contributor),
            _HAS_RECEIPT,
            SubmissionRow.state.in_((SubmissionState.SUBMITTED, SubmissionState.ACCEPTED)),
        )
        return self.session.scalars(query.options(selectinload(SubmissionRow.turns))).all()

    def sum_unreplayed_units(self, contributors: Collection[str]) -> dict[str, int]:
        """Return the units of each contributor's submissions that are not replayed. Claimed units count if undecided.

        Submissions in an epoch count only while an earlier submission of the contributor is being replayed, because the
        result of that replay comes too late for them.
        """
        units: Counter[str] = Counter()
        total = select(SubmissionRow.contributor, func.sum(SubmissionRow.units)).group_by(SubmissionRow.contributor)
        for part in cut(contributors):
            is_theirs = SubmissionRow.contributor.in_(part), SubmissionRow.audited.is_not(True)
            open_work = total.where(*is_theirs, SubmissionRow.epoch.is_(None))
            first = (
                select(SubmissionRow.contributor, func.min(SubmissionRow.signed_at).label("signed_at"))
                .where(SubmissionRow.contributor.in_(part), SubmissionRow.state == SubmissionState.SUBMITTED)
                .where(SubmissionRow.audited.is_(True))
                .group_by(SubmissionRow.contributor)
                .subquery()
            )
            since = total.join(first, first.c.contributor == SubmissionRow.contributor).where(
                *is_theirs, SubmissionRow.epoch.is_not(None), SubmissionRow.signed_at >= first.c.signed_at
            )
            for query in (open_work, since):
                units.update({row[0]: int(row[1]) for row in self.session.execute(query)})
        return dict(units)

    def list_rejected_contributors(self) -> Sequence[str]:
        """Return the contributors of submissions that a quorum rejected for a hard reason."""
        query = select(SubmissionRow.contributor).where(_IS_HARD).distinct()
        return self.session.scalars(query.order_by(SubmissionRow.contributor)).all()

    def list_rejected(self, contributor: str) -> Sequence[str]:
        """Return the receipt hashes of a contributor's submissions that a quorum rejected for a hard reason."""
        query = select(SubmissionRow.receipt_hash).where(_IS_HARD, SubmissionRow.contributor == contributor)
        return self.session.scalars(query).all()

    def list_recent_submissions(
        self, limit: int, *, before: int | None = None, **wanted: str | None
    ) -> Sequence[SubmissionRow]:
        """Return submissions with these values of columns, those of the newest tasks first. None matches any value.

        With `before`, only submissions of tasks with a lower id are returned.
        """
        named = {name: value for name, value in wanted.items() if value is not None}
        query = select(SubmissionRow).filter_by(**named).order_by(SubmissionRow.task.desc()).limit(limit)
        if before is not None:
            query = query.where(SubmissionRow.task < before)
        return self.session.scalars(query.options(selectinload(SubmissionRow.turns))).all()

    def list_submissions_like(self, prefix: str) -> Sequence[SubmissionRow]:
        """Return at most two submissions whose receipt hash begins with a prefix in lower case."""
        return self.session.scalars(
            select(SubmissionRow)
            .where(SubmissionRow.receipt_hash >= prefix, SubmissionRow.receipt_hash < prefix + "g")
            .limit(2)
            .options(selectinload(SubmissionRow.turns))
        ).all()

    def list_unpacked(self, *, oldest_version: int) -> list[tuple[str, int, int]]:
        """Return accepted submissions of `oldest_version` or later that are in no batch, oldest first.

        Each is given as receipt hash, number of groups, and number of live groups.
        """
        query = select(SubmissionRow.receipt_hash, SubmissionRow.groups, SubmissionRow.live_groups)
        query = query.where(*_is_unpacked(oldest_version))
        found = self.session.execute(query.order_by(SubmissionRow.policy_version, SubmissionRow.task))
        return [(row[0], row[1], row[2]) for row in found]

    def sum_unpacked(self, *, oldest_version: int) -> tuple[int, int]:
        """Return the total numbers of groups and live groups of `list_unpacked`."""
        groups, live = self.session.execute(select(*_SUMS).where(*_is_unpacked(oldest_version))).one()
        return int(groups), int(live)

    def list_batch(self, step: int) -> Sequence[SubmissionRow]:
        return self.session.scalars(
            select(SubmissionRow).where(SubmissionRow.step == step).order_by(SubmissionRow.task)
        ).all()

    def count_packed_groups(self) -> int:
        """Return the number of groups in all batches."""
        return int(self.session.scalar(select(func.coalesce(func.sum(StepRow.packed_groups), 0))) or 0)

    def pack(self, step: StepRow, receipt_hashes: Collection[str], *, groups: int, live_groups: int) -> None:
        """Put submissions into the batch of a step. `groups` and `live_groups` are their totals."""
        step.packed_groups, step.packed_live_groups = groups, live_groups
        for part in cut(receipt_hashes):
            packed = update(SubmissionRow).where(SubmissionRow.receipt_hash.in_(part))
            self.session.execute(packed.values(step=step.number))

    def sum_accepted_groups(self, *, oldest_version: int) -> tuple[int, int]:
        """Return the numbers of groups and live groups of all accepted submissions of `oldest_version` or later."""
        query = select(*_SUMS).where(_IS_ACCEPTED, SubmissionRow.policy_version >= oldest_version)
        groups, live = self.session.execute(query).one()
        return int(groups), int(live)

    def get_validator(self, address: str) -> ValidatorRow | None:
        """Return a validator. The row stays in memory, because other items of a batch need it too."""
        row = self.session.get(ValidatorRow, address)
        self.kept.add(row)
        return row

    def require_validator(self, address: str) -> ValidatorRow:
        """Return the row of a validator. Add it if there is none."""
        row = self.get_validator(address)
        if row is None:
            row = ValidatorRow(
                address=address, seen_at=0.0, active_at=0.0, passes=0, lapsed=0, contradicted=0, failed_at=0.0
            )
            self.add(row)
            self.kept.add(row)
        return row

    def list_validators(self) -> dict[str, ValidatorRow]:
        """Return all validators that ever had a row, by address."""
        return {row.address: row for row in self.session.scalars(select(ValidatorRow).order_by(ValidatorRow.address))}

    def list_canary_judgements(self) -> list[tuple[TurnRow, int]]:
        """Return the turns with revealed verdicts about decided and replayed canaries, with each canary's kind."""
        query = (
            select(TurnRow, SubmissionRow.canary)
            .join(SubmissionRow, SubmissionRow.receipt_hash == TurnRow.receipt_hash)
            .where(
                SubmissionRow.state != SubmissionState.SUBMITTED,
                SubmissionRow.canary > literal_column("0"),  # SQLite finds the index by the text of its condition.
                SubmissionRow.audited.is_(True),
                TurnRow.verdict.is_not(None),
                TurnRow.lapsed.is_(False),
            )
        )
        return [(row[0], row[1]) for row in self.session.execute(query)]

    # -- cases

    def get_case(self, receipt_hash: str) -> CaseRow | None:
        return self.session.get(CaseRow, receipt_hash)

    def list_cases(self) -> Sequence[CaseRow]:
        return self.session.scalars(select(CaseRow).order_by(CaseRow.block_number, CaseRow.receipt_hash)).all()

    def list_hard_rejections(self) -> Sequence[SubmissionRow]:
        """Return submissions that a quorum rejected for a hard reason and whose case on chain is not closed."""
        closed = select(CaseRow.receipt_hash).where(CaseRow.state != CaseState.LOCKED)
        query = select(SubmissionRow).where(_IS_HARD, _HAS_RECEIPT, SubmissionRow.receipt_hash.not_in(closed))
        return self.session.scalars(query.order_by(SubmissionRow.task)).all()

    def list_unopened(self, *, decided_since: float) -> Sequence[SubmissionRow]:
        """Return submissions that a quorum rejected for a hard reason since a Unix time and that have no case.

        Their turns are loaded.
        """
        query = select(SubmissionRow).where(
            _IS_HARD,
            _HAS_RECEIPT,
            SubmissionRow.state == SubmissionState.REJECTED,
            SubmissionRow.decided_at >= decided_since,
            SubmissionRow.receipt_hash.not_in(select(CaseRow.receipt_hash)),
        )
        return self.session.scalars(query.options(selectinload(SubmissionRow.turns))).all()

    def count_by_state(self, model: type[TaskRow] | type[SubmissionRow]) -> dict[str, int]:
        query = select(model.state, func.count()).group_by(model.state)
        return {str(state): count for state, count in self.session.execute(query)}

    def count_by_reason(self) -> dict[int, int]:
        query = (
            select(SubmissionRow.reason, func.count()).where(SubmissionRow.reason > 0).group_by(SubmissionRow.reason)
        )
        return {row[0]: row[1] for row in self.session.execute(query)}

    # -- the network

    def get_identity(self) -> dict[str, str]:
        """Return the recorded values that identify the network, by name."""
        return {row.name: row.value for row in self.session.scalars(select(IdentityRow))}

    def add_identity(self, values: Mapping[str, str]) -> None:
        """Record identifying values. Names that are already recorded keep their values."""
        known = self.get_identity()
        self.session.add_all(IdentityRow(name=name, value=value) for name, value in values.items() if name not in known)
