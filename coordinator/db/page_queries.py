"""Queries of the pages: columns instead of rows, and at most MAX_ROWS of them.

A list continues after the key of its last item, so a page deep in a list costs as much as the first one. Every filter
has an index that also gives the order.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, case, func, literal_column, or_, select
from sqlalchemy.orm import Session

from coordinator.db.intent_row import IntentRow
from coordinator.db.models import (
    CaseRow,
    ContributorRow,
    EpochRow,
    NodeRow,
    StepRow,
    SubmissionRow,
    TaskRow,
    TurnRow,
    ValidatorRow,
)
from coordinator.db.omission_queries import ChallengeRow
from covey.chain.outbox import IntentState
from covey.protocol.messages import Verdict
from covey.protocol.status import CaseState, StepState, SubmissionState, TaskState
from covey.protocol.verdict import Decision

MAX_ROWS = 200
"""Maximum number of rows of a list."""
_TRIES = range(8)
"""Numbers of the attempts to post an epoch among which the successful one is searched."""


class NodeItem(NamedTuple):
    """A node in a list."""

    address: str
    contributor: str
    suspended: str
    removed: bool
    seen_at: float
    waiting_until: float
    cached_version: int | None
    accepted: int
    dropped: int


class NodeCounts(NamedTuple):
    """Numbers of nodes by state. Each node counts once, for the first state that is true of it."""

    removed: int
    suspended: int
    dead: int
    unhealthy: int
    waiting: int
    """Nodes whose long poll is open: they ask for a task and have none."""
    busy: int
    """All others: they were heard lately and do not ask."""


class SubmissionItem(NamedTuple):
    """A submission in a list."""

    receipt_hash: str
    task: int
    node: str
    contributor: str
    policy_version: int
    state: SubmissionState
    decision: Decision | None
    reason: int
    audited: bool | None
    groups: int
    live_groups: int
    units: int
    receipt_units: int
    lease: int
    work_key: str
    signed_at: int
    decided_at: float | None
    step: int | None
    epoch: int | None
    evidence_hash: str


class EpochItem(NamedTuple):
    """An epoch in a list."""

    number: int
    work_root: str
    reward_root: str
    data_hash: str
    previous_hash: str
    header_hash: str | None
    leaf_count: int
    units: int
    closed_at: float
    final_at: int | None
    posted_block: int | None
    reward: str | None
    cumulative: str | None
    disabled: bool
    settled: bool


class StepItem(NamedTuple):
    """A policy, with the batch that the next one is trained on."""

    number: int
    record_hash: str
    block_number: int
    state: StepState
    accepted_groups: int
    packed_groups: int
    packed_live_groups: int


class CaseItem(NamedTuple):
    """A slashing case in a list."""

    receipt_hash: str
    node: str
    contributor: str
    state: CaseState
    block_number: int
    transaction_hash: str
    reason: int
    amount: str | None
    veto_until: int | None
    opened_transaction: str | None


class TurnItem(NamedTuple):
    """A validator's turn at a submission."""

    validator: str | None
    full: bool
    opened_at: float
    commitment: str | None
    verdict: Verdict | None
    signature: str | None
    lapsed: bool


class ValidatorItem(NamedTuple):
    """What is known of a validator."""

    address: str
    seen_at: float
    judged: int
    lapsed: int
    slow: int
    contradicted: int


class ContributorItem(NamedTuple):
    """Standing of a contributor."""

    address: str
    strikes: int
    accepted: int
    dropped: int
    suspended: str
    pardons: int
    staked: str | None
    locked: str | None
    claimed: str | None


class SubmissionSums(NamedTuple):
    """Sums over the submissions of a contributor."""

    submissions: int
    undecided: int
    accepted: int
    units_waiting: int
    """Units of accepted submissions that no epoch holds."""


def _columns(model: type, item: Any) -> list[Any]:
    return [getattr(model, name) for name in item._fields]


_SUBMISSIONS = select(*_columns(SubmissionRow, SubmissionItem))
_TASK = SubmissionRow.task.desc()


class PageQueries:
    """The part of the repository that serves pages."""

    session: Session

    def list_node_items(self, *, after: str = "", limit: int = MAX_ROWS, contributor: str = "") -> list[NodeItem]:
        """Return nodes by address, from the one after `after` on; of one contributor if it is named."""
        query = select(*_columns(NodeRow, NodeItem)).where(NodeRow.address > after).order_by(NodeRow.address)
        if contributor:
            query = query.where(NodeRow.contributor == contributor)
        return [NodeItem(*row) for row in self._list(query, limit)]

    def count_nodes(self, *, now: float, dead_s: float, unhealthy_s: float) -> NodeCounts:
        """Count the nodes by state. `dead_s` and `unhealthy_s` are seconds of silence."""
        states = {
            "removed": NodeRow.removed,
            "suspended": NodeRow.suspended != "",
            "dead": NodeRow.seen_at <= now - dead_s,
            "unhealthy": NodeRow.seen_at <= now - unhealthy_s,
            "waiting": NodeRow.waiting_until >= now,
        }
        state = case(*((condition, name) for name, condition in states.items()), else_="busy").label("state")
        found = {row[0]: row[1] for row in self.session.execute(select(state, func.count()).group_by("state"))}
        return NodeCounts(**{name: found.get(name, 0) for name in NodeCounts._fields})

    def list_submission_items(
        self, *, before: int | None = None, limit: int = MAX_ROWS, **filters: str | int
    ) -> list[SubmissionItem]:
        """Return submissions of the newest tasks first, from the one before the task `before` on.

        `filters` has at most one of the columns contributor, node, state, epoch, policy_version and reason.
        """
        query = _SUBMISSIONS.filter_by(**filters).order_by(_TASK)
        if "reason" in filters:
            query = query.where(SubmissionRow.reason > literal_column("0"))  # SQLite finds its index by this text.
        if before is not None:
            query = query.where(SubmissionRow.task < before)
        return [SubmissionItem(*row) for row in self._list(query, limit)]

    def list_judged_items(
        self, validator: str, *, before: int | None = None, limit: int = MAX_ROWS
    ) -> list[tuple[int, SubmissionItem]]:
        """Return a validator's decided submissions with the numbers of its turns, newest first, from `before` on."""
        turns = select(TurnRow.id, TurnRow.receipt_hash).where(TurnRow.validator == validator)
        turns = turns.join(SubmissionRow, SubmissionRow.receipt_hash == TurnRow.receipt_hash)
        turns = turns.where(SubmissionRow.decided_at.is_not(None))
        if before is not None:
            turns = turns.where(TurnRow.id < before)
        part = turns.order_by(TurnRow.id.desc()).limit(min(limit, MAX_ROWS)).subquery()
        query = select(part.c.id, *_columns(SubmissionRow, SubmissionItem)).join(
            part, part.c.receipt_hash == SubmissionRow.receipt_hash
        )
        found = self.session.execute(query.order_by(part.c.id.desc()))
        return [(row[0], SubmissionItem(*row[1:])) for row in found]

    def find_submission_items(self, prefix: str) -> list[SubmissionItem]:
        """Return at most two submissions whose receipt hash, in lower case, begins so."""
        query = _SUBMISSIONS.where(SubmissionRow.receipt_hash >= prefix, SubmissionRow.receipt_hash < prefix + "g")
        return [SubmissionItem(*row) for row in self._list(query, 2)]

    def list_turn_items(self, receipt_hash: str) -> list[TurnItem]:
        """Return the turns at a submission, oldest first."""
        query = select(*_columns(TurnRow, TurnItem)).where(TurnRow.receipt_hash == receipt_hash).order_by(TurnRow.id)
        return [TurnItem(*row) for row in self._list(query, MAX_ROWS)]

    def sum_submissions(self, contributor: str) -> SubmissionSums:
        """Return sums over all submissions of a contributor."""
        is_accepted, is_unheld = SubmissionRow.decision == Decision.ACCEPT, SubmissionRow.epoch.is_(None)
        query = select(
            func.count(),
            func.count().filter(SubmissionRow.state == SubmissionState.SUBMITTED),
            func.count().filter(is_accepted),
            func.coalesce(func.sum(SubmissionRow.units).filter(is_accepted, is_unheld), 0),
        )
        found = self.session.execute(query.where(SubmissionRow.contributor == contributor)).one()
        return SubmissionSums(*(int(value) for value in found))

    def sum_units_by_epoch(self, contributor: str) -> dict[int, int]:
        """Return the units of a contributor in each epoch that stands and holds work of it, by the epoch's number."""
        query = select(SubmissionRow.epoch, func.sum(SubmissionRow.units))
        query = query.where(SubmissionRow.contributor == contributor, SubmissionRow.epoch.is_not(None))
        rows = self.session.execute(query.group_by(SubmissionRow.epoch)).all()
        return {int(epoch or 0): int(units) for epoch, units in rows}

    def sum_units_since(self, contributor: str, *, since: float) -> int:
        """Return the accepted units of a contributor that were countersigned since a time in Unix seconds."""
        query = select(func.coalesce(func.sum(SubmissionRow.units), 0)).where(
            SubmissionRow.contributor == contributor,
            SubmissionRow.signed_at >= since,
            SubmissionRow.decision == Decision.ACCEPT,
        )
        return int(self.session.scalar(query) or 0)

    def list_epoch_items(self, *, before: int | None = None, limit: int = MAX_ROWS) -> list[EpochItem]:
        """Return the newest epochs first, from the one before `before` on. Epochs that are closing are left out."""
        query = select(*_columns(EpochRow, EpochItem)).where(EpochRow.data_hash != "")
        if before is not None:
            query = query.where(EpochRow.number < before)
        return [EpochItem(*row) for row in self._list(query.order_by(EpochRow.number.desc()), limit)]

    def find_epoch_items(self, epochs: Collection[int]) -> dict[int, EpochItem]:
        """Return the epochs with these numbers that exist, by number."""
        query = select(*_columns(EpochRow, EpochItem)).where(EpochRow.number.in_(sorted(epochs)[:MAX_ROWS]))
        return {row[0]: EpochItem(*row) for row in self.session.execute(query)}

    def count_open_challenges(self, contributor: str) -> int:
        """Return the number of open omission challenges about receipts of a contributor."""
        is_about = ChallengeRow.receipt_hash == SubmissionRow.receipt_hash
        query = select(func.count()).select_from(ChallengeRow).join(SubmissionRow, is_about)
        query = query.where(SubmissionRow.contributor == contributor, ChallengeRow.decided_block.is_(None))
        return self.session.scalar(query) or 0

    def find_transactions(self, pool: int, epochs: Collection[int]) -> dict[int, str]:
        """Return the hashes of the transactions in which this coordinator posted epochs, by epoch."""
        keys = {f"epoch/{pool}/{epoch}/{tries}": epoch for epoch in sorted(epochs)[:MAX_ROWS] for tries in _TRIES}
        query = select(IntentRow.key, IntentRow.transaction_hash).where(
            IntentRow.key.in_(keys), IntentRow.transaction_hash.is_not(None), IntentRow.state == IntentState.MINED
        )
        return {keys[key]: digest for key, digest in self.session.execute(query) if digest}

    def list_step_items(self, *, before: int | None = None, limit: int = MAX_ROWS) -> list[StepItem]:
        """Return the newest policies first, from the one before `before` on."""
        query = select(*_columns(StepRow, StepItem)).order_by(StepRow.number.desc())
        if before is not None:
            query = query.where(StepRow.number < before)
        return [StepItem(*row) for row in self._list(query, limit)]

    def find_announced(self, steps: Collection[int | None]) -> dict[int | None, float]:
        """Return the Unix times at which policies were first seen on chain, by step. Unknown ones are left out."""
        if not steps:
            return {}
        query = select(StepRow.number, StepRow.announced_at).where(StepRow.number.in_(steps))
        return {row[0]: row[1] for row in self.session.execute(query) if row[1] is not None}

    def list_policy_seconds(self, *, since: float) -> Sequence[float]:
        """Return the seconds from a policy's announcement until a node had it, sorted. Nodes heard since then count."""
        query = select(NodeRow.policy_seconds).where(NodeRow.policy_seconds.is_not(None), NodeRow.seen_at > since)
        return [
            float(seconds)
            for seconds in self.session.scalars(query.order_by(NodeRow.policy_seconds))
            if seconds is not None
        ]

    def list_case_items(
        self, *, before: tuple[int, str] | None = None, limit: int = MAX_ROWS, contributor: str = ""
    ) -> list[CaseItem]:
        """Return the newest cases first, from the one after the block and the receipt hash in `before` on."""
        query = select(*_columns(CaseRow, CaseItem))
        if contributor:
            query = query.where(CaseRow.contributor == contributor)
        if before is not None:
            block, receipt_hash = before
            same = and_(CaseRow.block_number == block, CaseRow.receipt_hash < receipt_hash)
            query = query.where(or_(CaseRow.block_number < block, same))
        order = CaseRow.block_number.desc(), CaseRow.receipt_hash.desc()
        return [CaseItem(*row) for row in self._list(query.order_by(*order), limit)]

    def find_cases(self, receipt_hashes: Collection[str]) -> dict[str, CaseItem]:
        """Return the cases about submissions, by receipt hash."""
        query = select(*_columns(CaseRow, CaseItem)).where(CaseRow.receipt_hash.in_(sorted(receipt_hashes)[:MAX_ROWS]))
        return {row[0]: CaseItem(*row) for row in self.session.execute(query)}

    def count_open_tasks(self) -> Mapping[str, int]:
        """Return the number of tasks that are pending or leased, by state. All others are over, maybe millions."""
        is_open = TaskRow.state.in_((TaskState.PENDING, TaskState.ASSIGNED))
        query = select(TaskRow.state, func.count()).where(is_open).group_by(TaskRow.state)
        return {str(state): count for state, count in self.session.execute(query)}

    def count_cases(self) -> Mapping[str, int]:
        """Return the number of cases by state."""
        query = select(CaseRow.state, func.count()).group_by(CaseRow.state)
        return {str(state): count for state, count in self.session.execute(query)}

    def list_validator_items(self) -> list[ValidatorItem]:
        """Return all validators that were seen, by address, at most MAX_ROWS."""
        query = select(*_columns(ValidatorRow, ValidatorItem)).order_by(ValidatorRow.address)
        return [ValidatorItem(*row) for row in self._list(query, MAX_ROWS)]

    def find_contributor_item(self, address: str) -> ContributorItem | None:
        """Return the standing of a contributor. None if it never had a node."""
        query = select(*_columns(ContributorRow, ContributorItem)).where(ContributorRow.address == address)
        row = self.session.execute(query).first()
        return None if row is None else ContributorItem(*row)

    def _list(self, query: Select[Any], limit: int) -> Sequence[Any]:
        return self.session.execute(query.limit(min(limit, MAX_ROWS))).all()
