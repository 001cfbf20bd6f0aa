"""Every query of the coordinator.  `Repository` never commits: whoever opened the transaction does."""

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, delete, func, or_, select, update
from sqlalchemy.orm import Session, selectinload

from coordinator.db.chain_queries import ChainRows
from coordinator.db.models import (
    Case,
    Contributor,
    Epoch,
    Fact,
    Identity,
    Judgement,
    Node,
    Nonce,
    Reward,
    Step,
    Submission,
    Task,
    Validator,
)
from covey.protocol.status import CaseState, StepState, SubmissionState, TaskState

_IS_ACCEPTED = Submission.state.in_((SubmissionState.ACCEPTED, SubmissionState.SETTLED)), Submission.reason == 0
_SUMS = func.coalesce(func.sum(Submission.groups), 0), func.coalesce(func.sum(Submission.live_groups), 0)


def _is_unreplayed(contributor: str) -> tuple[ColumnElement[bool], ...]:
    return Submission.contributor == contributor, Submission.audited.is_not(True), Submission.epoch.is_(None)


class Repository(ChainRows):
    """Every query of the coordinator, within one transaction."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def add(self, row: object) -> None:
        self.session.add(row)
        self.session.flush()

    # -- nodes and nonces

    def get_node(self, address: str) -> Node | None:
        return self.session.get(Node, address)

    def list_nodes(self) -> Sequence[Node]:
        return self.session.scalars(select(Node).order_by(Node.address)).all()

    def list_nodes_of(self, contributor: str) -> Sequence[Node]:
        return self.session.scalars(select(Node).where(Node.contributor == contributor).order_by(Node.address)).all()

    def get_contributor(self, address: str) -> Contributor | None:
        return self.session.get(Contributor, address)

    def list_waiting_nodes(self, now: float) -> Sequence[Node]:
        """Nodes whose long poll is open, that are neither suspended nor removed nor cooling down."""
        query = select(Node).where(
            Node.waiting_until > now, Node.suspended == "", ~Node.removed, Node.cooldown_until <= now
        )
        return self.session.scalars(query.order_by(Node.address)).all()

    def is_nonce_new(self, signer: str, nonce: str, *, expires: float, now: float) -> bool:
        """Record a nonce; False when it was used before."""
        self.session.execute(delete(Nonce).where(Nonce.expires < now))
        if self.session.get(Nonce, (signer, nonce)) is not None:
            return False
        self.add(Nonce(signer=signer, nonce=nonce, expires=expires))
        return True

    # -- steps and tasks

    def get_step(self, number: int) -> Step | None:
        return self.session.get(Step, number)

    def get_latest_step(self) -> Step | None:
        """The newest one whose policy is on chain."""
        query = select(Step).where(Step.manifest_hash != "").order_by(Step.number.desc())
        return self.session.scalars(query.limit(1)).first()

    def get_open_step(self) -> Step | None:
        """The one whose batch is to be packed."""
        return self.session.scalars(select(Step).where(Step.state == StepState.OPEN)).first()

    def count_closed_batches(self) -> int:
        """Also the step that the next batch is for."""
        return self.session.scalar(select(func.count()).where(Step.state != StepState.OPEN)) or 0

    def list_steps(self) -> Sequence[Step]:
        return self.session.scalars(select(Step).order_by(Step.number)).all()

    def get_task(self, task: int) -> Task | None:
        return self.session.get(Task, task)

    def list_tasks(self, *states: TaskState) -> Sequence[Task]:
        return self.session.scalars(select(Task).where(Task.state.in_(states)).order_by(Task.id)).all()

    def get_assigned_task(self, node: str, holding: Sequence[int] = ()) -> Task | None:
        """The oldest task that is leased to `node` and whose lease it does not know of."""
        query = select(Task).where(Task.state == TaskState.ASSIGNED, Task.node == node, Task.lease.not_in(holding))
        return self.session.scalars(query.order_by(Task.id).limit(1)).first()

    def count_leases(self, node: str) -> int:
        query = select(func.count()).where(Task.state == TaskState.ASSIGNED, Task.node == node)
        return self.session.scalar(query) or 0

    def count_groups_in_flight(self, *, oldest_version: int) -> int:
        """Groups of tasks that may still bring accepted work of `oldest_version` or later."""
        open_tasks = select(func.coalesce(func.sum(Task.groups), 0)).where(
            Task.state.in_((TaskState.PENDING, TaskState.ASSIGNED)), Task.policy_version >= oldest_version
        )
        undecided = select(func.coalesce(func.sum(Submission.groups), 0)).where(
            Submission.state == SubmissionState.SUBMITTED,
            Submission.step.is_(None),  # one in a batch is judged again: the batch counts it
            Submission.policy_version >= oldest_version,
        )
        return int(self.session.scalar(open_tasks) or 0) + int(self.session.scalar(undecided) or 0)

    # -- submissions and judgements

    def get_submission(self, receipt_hash: str) -> Submission | None:
        return self.session.get(Submission, receipt_hash)

    def find_submission(self, *, task: int, lease: int) -> Submission | None:
        query = select(Submission).where(Submission.task == task, Submission.lease == lease)
        return self.session.scalars(query).first()

    def is_work_key_used(self, work_key: str) -> bool:
        return self.session.scalars(select(Submission.task).where(Submission.work_key == work_key)).first() is not None

    def list_submissions(self, *states: SubmissionState) -> Sequence[Submission]:
        query = select(Submission).where(Submission.state.in_(states))
        return self.session.scalars(query.order_by(Submission.policy_version, Submission.task)).all()

    def list_unreplayed(self, contributor: str) -> Sequence[Submission]:
        """Submissions of a contributor, undecided or accepted, that no replay was asked for and no epoch holds."""
        query = select(Submission).where(
            *_is_unreplayed(contributor),
            Submission.state.in_((SubmissionState.SUBMITTED, SubmissionState.ACCEPTED)),
        )
        return self.session.scalars(query.options(selectinload(Submission.judgements))).all()

    def sum_unreplayed_units(self, contributor: str) -> int:
        """Units of a contributor's submissions that no replay was asked for: claimed ones of those that are undecided.

        Those in an epoch count while an earlier submission is being replayed: what that replay finds comes too late for
        them.
        """
        replaying = select(func.min(Submission.signed_at)).where(
            Submission.contributor == contributor,
            Submission.state == SubmissionState.SUBMITTED,
            Submission.audited.is_(True),
        )
        query = select(func.coalesce(func.sum(Submission.units), 0)).where(
            Submission.contributor == contributor,
            Submission.audited.is_not(True),
            or_(Submission.epoch.is_(None), Submission.signed_at >= replaying.scalar_subquery()),
        )
        return int(self.session.scalar(query) or 0)

    def list_rejected_contributors(self) -> Sequence[str]:
        """Contributors that a quorum rejected a submission of for a hard reason."""
        query = select(Submission.contributor).where(Submission.reason.between(1, 31)).distinct()
        return self.session.scalars(query.order_by(Submission.contributor)).all()

    def list_recent_submissions(self, limit: int, **wanted: str | None) -> Sequence[Submission]:
        """The newest tasks' first, with these values of their columns; None stands for any."""
        named = {name: value for name, value in wanted.items() if value is not None}
        query = select(Submission).filter_by(**named).order_by(Submission.task.desc()).limit(limit)
        return self.session.scalars(query.options(selectinload(Submission.judgements))).all()

    def list_submissions_like(self, prefix: str) -> Sequence[Submission]:
        """At most two whose receipt hash, in lower case, begins so."""
        return self.session.scalars(select(Submission).where(Submission.receipt_hash.startswith(prefix)).limit(2)).all()

    def list_unpacked(self, *, oldest_version: int) -> Sequence[Submission]:
        """Accepted submissions that no batch holds and that are fresh enough, oldest first."""
        query = select(Submission).where(
            *_IS_ACCEPTED, Submission.step.is_(None), Submission.policy_version >= oldest_version
        )
        return self.session.scalars(query.order_by(Submission.policy_version, Submission.task)).all()

    def list_batch(self, step: int) -> Sequence[Submission]:
        return self.session.scalars(select(Submission).where(Submission.step == step).order_by(Submission.task)).all()

    def count_packed_groups(self) -> int:
        query = select(func.coalesce(func.sum(Submission.groups), 0)).where(Submission.step.is_not(None))
        return int(self.session.scalar(query) or 0)

    def sum_accepted_groups(self, *, oldest_version: int) -> tuple[int, int]:
        """Groups of accepted work of `oldest_version` or later, in a batch or not, and the live ones among them."""
        query = select(*_SUMS).where(*_IS_ACCEPTED, Submission.policy_version >= oldest_version)
        groups, live = self.session.execute(query).one()
        return int(groups), int(live)

    def sum_batches(self) -> dict[int, tuple[int, int]]:
        """Groups of the batch of each step that has one, and the live ones among them."""
        query = select(Submission.step, *_SUMS).where(Submission.step.is_not(None)).group_by(Submission.step)
        return {row[0]: (int(row[1]), int(row[2])) for row in self.session.execute(query) if row[0] is not None}

    def get_validator(self, address: str) -> Validator | None:
        return self.session.get(Validator, address)

    def require_validator(self, address: str) -> Validator:
        """The row of a validator, which begins with its first mention."""
        row = self.get_validator(address)
        if row is None:
            row = Validator(address=address, seen_at=0.0, lapsed=0, contradicted=0, failed_at=0.0)
            self.add(row)
        return row

    def list_validators(self) -> dict[str, Validator]:
        """All that were seen, by address."""
        return {row.address: row for row in self.session.scalars(select(Validator).order_by(Validator.address))}

    def get_judgement(self, judgement: int) -> Judgement | None:
        return self.session.get(Judgement, judgement)

    def list_open_judgements(self) -> Sequence[Judgement]:
        """Judgements of undecided submissions that are neither revealed nor lapsed."""
        query = (
            select(Judgement)
            .join(Submission, Submission.receipt_hash == Judgement.receipt_hash)
            .where(
                Submission.state == SubmissionState.SUBMITTED,
                Judgement.verdict.is_(None),
                Judgement.lapsed.is_(False),
            )
        )
        return self.session.scalars(query.order_by(Judgement.id)).all()

    def count_verdicts(self) -> dict[str, int]:
        """Verdicts revealed on decided submissions, by validator."""
        query = (
            select(Judgement.validator, func.count())
            .join(Submission, Submission.receipt_hash == Judgement.receipt_hash)
            .where(Submission.state != SubmissionState.SUBMITTED, Judgement.verdict.is_not(None))
            .group_by(Judgement.validator)
            .order_by(Judgement.validator)
        )
        return {row[0]: row[1] for row in self.session.execute(query) if row[0] is not None}

    def list_canary_judgements(self) -> list[tuple[Judgement, int]]:
        """Verdicts revealed on decided, replayed canaries, with the kind of each."""
        query = (
            select(Judgement, Submission.canary)
            .join(Submission, Submission.receipt_hash == Judgement.receipt_hash)
            .where(
                Submission.state != SubmissionState.SUBMITTED,
                Submission.canary > 0,
                Submission.audited.is_(True),
                Judgement.verdict.is_not(None),
                Judgement.lapsed.is_(False),
            )
        )
        return [(row[0], row[1]) for row in self.session.execute(query.order_by(Judgement.id))]

    # -- epochs, rewards, cases

    def list_unsettled(self) -> Sequence[Submission]:
        """Decided submissions that no epoch holds, or only one that was disabled."""
        query = select(Submission).where(Submission.state != SubmissionState.SUBMITTED, Submission.epoch.is_(None))
        return self.session.scalars(query.order_by(Submission.task)).all()

    def sum_settled_units(self) -> dict[str, int]:
        """Units by contributor in all epochs that stand; a disabled one holds no submission any more."""
        query = select(Submission.contributor, func.sum(Submission.units)).where(Submission.epoch.is_not(None))
        return {row[0]: int(row[1]) for row in self.session.execute(query.group_by(Submission.contributor))}

    def list_settled(self, epoch: int) -> Sequence[Submission]:
        """The submissions of an epoch."""
        return self.session.scalars(select(Submission).where(Submission.epoch == epoch)).all()

    def list_epochs(self) -> Sequence[Epoch]:
        return self.session.scalars(select(Epoch).order_by(Epoch.number)).all()

    def has_epoch_file(self, data_hash: str) -> bool:
        """Whether an epoch's leaves and rewards lie under this hash."""
        return self.session.scalar(select(Epoch.number).where(Epoch.data_hash == data_hash).limit(1)) is not None

    def get_epoch(self, number: int) -> Epoch | None:
        return self.session.get(Epoch, number)

    def list_rewards(self, epoch: int) -> Sequence[Reward]:
        return self.session.scalars(select(Reward).where(Reward.epoch == epoch).order_by(Reward.contributor)).all()

    def mark_settled(self, epoch: int) -> None:
        self.session.execute(update(Submission).where(Submission.epoch == epoch).values(state=SubmissionState.SETTLED))

    def release_from_epoch(self, epoch: int) -> None:
        """Take all submissions out of an epoch; what was accepted is accepted again, and not settled."""
        held = update(Submission).where(Submission.epoch == epoch)
        is_settled = Submission.state == SubmissionState.SETTLED
        self.session.execute(held.where(is_settled, Submission.reason == 0).values(state=SubmissionState.ACCEPTED))
        self.session.execute(held.values(epoch=None))

    def get_case(self, receipt_hash: str) -> Case | None:
        return self.session.get(Case, receipt_hash)

    def list_cases(self) -> Sequence[Case]:
        return self.session.scalars(select(Case).order_by(Case.block_number, Case.receipt_hash)).all()

    def list_hard_rejections(self) -> Sequence[Submission]:
        """Submissions that a quorum rejected for a hard reason and whose case on chain is not closed."""
        closed = select(Case.receipt_hash).where(Case.state != CaseState.LOCKED)
        query = select(Submission).where(Submission.reason.between(1, 31), Submission.receipt_hash.not_in(closed))
        return self.session.scalars(query.order_by(Submission.task)).all()

    def count_by_state(self, model: type[Task] | type[Submission]) -> dict[str, int]:
        query = select(model.state, func.count()).group_by(model.state)
        return {str(state): count for state, count in self.session.execute(query)}

    def count_by_reason(self) -> dict[int, int]:
        query = select(Submission.reason, func.count()).where(Submission.reason > 0).group_by(Submission.reason)
        return {row[0]: row[1] for row in self.session.execute(query)}

    # -- facts

    def get_fact(self, name: str) -> int:
        """A named number, 0 where it was never set."""
        fact = self.session.get(Fact, name)
        return fact.value if fact else 0

    def set_fact(self, name: str, value: int) -> None:
        self.session.merge(Fact(name=name, value=value))
        self.session.flush()

    def get_identity(self) -> dict[str, str]:
        """Values by name that were recorded of the network."""
        return {row.name: row.value for row in self.session.scalars(select(Identity))}

    def add_identity(self, values: Mapping[str, str]) -> None:
        """Record the values whose names are new."""
        known = self.get_identity()
        self.session.add_all(Identity(name=name, value=value) for name, value in values.items() if name not in known)
