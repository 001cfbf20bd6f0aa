"""The coordinator's tables. They hold all state; a Celery message only triggers work on them.

`covey.protocol.status` defines the states and the allowed transitions. Times are Unix seconds.
"""

from enum import StrEnum

from sqlalchemy import Enum, ForeignKey, Index, MetaData, String, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from coordinator.db.column_types import DecisionColumn, Number, SumsColumn, VerdictColumn
from covey.protocol.messages import Verdict
from covey.protocol.running_sums import Sums
from covey.protocol.status import CaseState, StepState, SubmissionState, TaskState
from covey.protocol.verdict import Decision


def _states(kind: type[StrEnum]) -> Enum:
    """Return the type of a column of states, stored as text and loaded as members of an enum."""
    return Enum(kind, native_enum=False, length=16)


def _index_some(name: str, *columns: str, where: str) -> Index:
    """Return a partial index of the few rows for which a condition holds."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class NodeRow(Base):
    """A registered node: its presence, its record of work and its suspension."""

    __tablename__ = "nodes"
    address: Mapped[str] = mapped_column(String(42), primary_key=True)
    contributor: Mapped[str] = mapped_column(String(42), index=True)
    instance: Mapped[str] = mapped_column(String(32), default="")
    """Id of the worker process that last sent a heartbeat or claim. Empty if none has yet."""
    contract: Mapped[str] = mapped_column(String(66), default="")
    """Digest of the node's execution contract. Empty if it works in the calibrated lane."""
    seen_at: Mapped[float] = mapped_column(default=0.0)
    """Unix time of the node's last heartbeat or claim. 0 if there was none yet."""
    waiting_until: Mapped[float] = mapped_column(default=0.0, index=True)
    """Unix time until which the node's long poll for a task is open, inclusive. Tasks are leased only to nodes with an
    open poll. A claim without a wait sets the current time."""
    free_slots: Mapped[int] = mapped_column(default=0)
    """Number of leases that the worker can hold at a time, as last reported."""
    cached_version: Mapped[int | None] = mapped_column(Number)
    """Step of the policy that the worker has on disk, as last reported. None if it has none."""
    policy_seconds: Mapped[float | None]
    """Seconds from the announcement of the last policy that followed another one on its disk until it had it."""
    accepted: Mapped[int] = mapped_column(default=0)
    """Number of accepted submissions for its contributor, since a node of that contributor was last caught cheating."""
    dropped: Mapped[int] = mapped_column(default=0)
    """Number of collected leases that the node dropped, since a node of its contributor was last caught cheating."""
    cooldown_until: Mapped[float] = mapped_column(default=0.0)
    """Unix time until which the node gets no task."""
    suspended: Mapped[str] = mapped_column(String(32), default="")
    """Reason why the node gets no more tasks (see `coordinator.domain.nodes`). Empty if it is not suspended."""
    removed: Mapped[bool] = mapped_column(default=False)
    """Whether the contributor has removed the node. Registering it again ends the removal, but not a suspension."""
    registered_block: Mapped[int] = mapped_column(Number, default=0)
    """Number of the newest block when the node registered, for the first time or after its removal."""

    @property
    def barred(self) -> str:
        """Reason why the node gets no tasks. Empty if it gets tasks."""
        return self.suspended or ("removed" if self.removed else "")


class ContributorRow(Base):
    """A wallet that has registered nodes. The row exists from the first registration on."""

    __tablename__ = "contributors"
    address: Mapped[str] = mapped_column(String(42), primary_key=True)
    strikes: Mapped[int] = mapped_column(default=0)
    """Number of strikes, from soft rejections and repeated drops of all its nodes, removed ones included."""
    accepted_since: Mapped[int] = mapped_column(default=0)
    """Number of submissions accepted since a strike was last forgiven. 0 if there are no strikes."""
    accepted: Mapped[int] = mapped_column(default=0)
    """Number of accepted submissions of all its nodes. It restarts at 0 when one of them is caught cheating."""
    dropped: Mapped[int] = mapped_column(default=0)
    """Number of leases that its nodes dropped, or held when they were removed."""
    suspended: Mapped[str] = mapped_column(String(32), default="")
    """Reason why none of its nodes, present or future, gets tasks. Empty if the contributor is not suspended."""
    pardons: Mapped[int] = mapped_column(default=0)
    """Number of times that the operator forgave all strikes."""
    staked: Mapped[str | None] = mapped_column(String(78))
    """Stake in the token's smallest unit, as decimal text. None if it has not been read from the chain yet."""
    locked: Mapped[str | None] = mapped_column(String(78))
    """Stake that open cases lock, in the format of `staked`. It may be larger than `staked`."""
    claimed: Mapped[str | None] = mapped_column(String(78))
    """Total rewards that the contributor has claimed on chain, in the format of `staked`."""
    stake_block: Mapped[int | None] = mapped_column(Number)
    """Number of the block at which `staked`, `locked` and `claimed` were read. None if they have not been read yet."""


class StepRow(Base):
    """A policy, and the batch on which the next policy is trained."""

    __tablename__ = "steps"
    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=False)
    record_hash: Mapped[str] = mapped_column(String(66), default="")
    """Hash of the policy's record. Empty while only the trainer has the policy and it is not on chain yet."""
    block_number: Mapped[int] = mapped_column(Number, default=0)
    state: Mapped[StepState] = mapped_column(_states(StepState), default=StepState.OPEN)
    packed_groups: Mapped[int] = mapped_column(default=0)
    """Number of groups in the step's batch. 0 until the batch is packed."""
    packed_live_groups: Mapped[int] = mapped_column(default=0)
    """Number of live groups in the step's batch, which are those whose rewards are not all equal."""
    accepted_groups: Mapped[int] = mapped_column(default=0)
    """Number of groups in all accepted submissions of this policy, in any batch or none."""
    announced_at: Mapped[float | None]
    """Unix time at which the coordinator read from the chain that the policy is published. None if it has not."""


class TaskRow(Base):
    """An order for `groups` groups, leased to one node. An expired task is replaced by a new one with another id."""

    __tablename__ = "tasks"
    id: Mapped[int] = mapped_column(Number, primary_key=True)
    policy_version: Mapped[int] = mapped_column(ForeignKey("steps.number"))
    groups: Mapped[int]
    state: Mapped[TaskState] = mapped_column(_states(TaskState), default=TaskState.PENDING)
    node: Mapped[str | None] = mapped_column(ForeignKey("nodes.address"))
    lease: Mapped[int | None] = mapped_column(Number, unique=True)
    offered_until: Mapped[float] = mapped_column(default=0.0)
    """Unix time until which the node may collect the lease."""
    collected_at: Mapped[float | None]
    """Unix time at which the node collected the lease. None if it has not."""
    ends_at: Mapped[float | None]
    """Unix time at which the collected lease ends. None if the lease is not collected."""
    contract: Mapped[str] = mapped_column(String(66), default="")
    """Digest of the node's execution contract at collection, which the judging uses. Empty for the calibrated lane."""
    __table_args__ = (
        Index("ix_tasks_state_node", "state", "node"),
        Index("ix_tasks_state_collected_at", "state", "collected_at", "node"),
        Index("ix_tasks_state_policy_version", "state", "policy_version", "id"),
    )

    @property
    def expires_at(self) -> float:
        """Unix time at which the lease expires or, if it is not collected yet, its offer."""
        return self.offered_until if self.ends_at is None else self.ends_at


class SubmissionRow(Base):
    """A receipt with its countersignature, and the state of its judging and settlement."""

    __tablename__ = "submissions"
    receipt_hash: Mapped[str] = mapped_column(String(66), primary_key=True)
    task: Mapped[int] = mapped_column(ForeignKey("tasks.id"), index=True)
    lease: Mapped[int] = mapped_column(Number)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.address"), index=True)
    contributor: Mapped[str] = mapped_column(String(42))
    policy_version: Mapped[int] = mapped_column(ForeignKey("steps.number"))
    work_key: Mapped[str] = mapped_column(String(66), unique=True)
    groups: Mapped[int]
    units: Mapped[int] = mapped_column(Number)
    """Number of work units: claimed by the receipt until the decision, then as counted by the validators."""
    deadline: Mapped[int] = mapped_column(Number)
    signature: Mapped[str] = mapped_column(String(132))
    receipt_units: Mapped[int] = mapped_column(Number)
    signed_at: Mapped[int] = mapped_column(Number)
    """Unix time of the countersignature. The draw comes `draw_seconds` later."""
    due_by: Mapped[int] = mapped_column(Number)
    """Unix time until which the countersignature promises to have the submission in a posted epoch."""
    countersignature: Mapped[str] = mapped_column(String(132))
    state: Mapped[SubmissionState] = mapped_column(_states(SubmissionState), default=SubmissionState.SUBMITTED)
    draw: Mapped[str | None] = mapped_column(String(66))
    """Hash of the block that draws the audit. None until that block is final, and after a reorganization removed it."""
    draw_block: Mapped[int | None] = mapped_column(Number)
    """Number of the block that draws the audit. None if `draw` is None."""
    audited: Mapped[bool | None]
    """Whether a quorum of validators replays the submission. Set by intake, by the draw or later. None if undrawn."""
    confirmed: Mapped[bool] = mapped_column(default=False)
    """Whether a second validator repeats the cheap checks of the submission."""
    decision: Mapped[Decision | None] = mapped_column(DecisionColumn)
    """Decision of the quorum. None while undecided. Neither settlement nor a disabled epoch changes it."""
    reason: Mapped[int] = mapped_column(default=0)
    """Value of the `Reason` of a decision that does not accept. 0 otherwise."""
    evidence_hash: Mapped[str] = mapped_column(String(66), default="0x" + "00" * 32)
    decided_at: Mapped[float | None]
    step: Mapped[int | None] = mapped_column(ForeignKey("steps.number"), index=True)
    """Number of the step whose batch contains the submission. None if it is in no batch."""
    epoch: Mapped[int | None] = mapped_column(ForeignKey("epochs.number"))
    """Number of the epoch that contains the submission. None if it is in no epoch."""
    contract: Mapped[str] = mapped_column(String(66), default="")
    """Execution contract of the lease. Only validators with the same contract judge it. Empty if all validators do."""
    canary: Mapped[int] = mapped_column(default=0)
    """Value of a `CanaryKind`, set at intake. 0 for an ordinary submission."""
    consent: Mapped[str] = mapped_column(String(132), default="")
    """Signature by which the contributor confirms that the submission is a canary. Empty for an ordinary submission."""
    live_groups: Mapped[int] = mapped_column(default=0)
    """Number of groups whose rewards are not all equal, once accepted (see `coordinator.domain.panel`)."""
    next_check_at: Mapped[float] = mapped_column(default=0.0)
    """Unix time from which the undecided submission may need attention."""
    turns: Mapped[list["TurnRow"]] = relationship(order_by="TurnRow.id")
    __table_args__ = (
        UniqueConstraint("task", "lease"),
        Index("ix_submissions_state", "state", "next_check_at"),
        Index("ix_submissions_contributor", "contributor", "epoch", "units"),
        Index("ix_submissions_contributor_task", "contributor", "task"),
        Index("ix_submissions_node_task", "node", "task"),
        Index("ix_submissions_state_task", "state", "task"),
        Index("ix_submissions_epoch_task", "epoch", "task"),
        Index("ix_submissions_policy_version_task", "policy_version", "task"),
        Index("ix_submissions_contributor_signed_at", "contributor", "signed_at"),
        _index_some("ix_submissions_refused", "reason", where="reason > 0"),
        _index_some("ix_submissions_canary", "canary", where="canary > 0"),
    )

    @property
    def is_replayed(self) -> bool:
        """Whether validators accepted the submission after a replay."""
        return self.decision is Decision.ACCEPT and bool(self.audited)


class ValidatorRow(Base):
    """The coordinator's record of a validator. Whether an address is a validator is decided by the chain."""

    __tablename__ = "validators"
    address: Mapped[str] = mapped_column(String(42), primary_key=True)
    seen_at: Mapped[float] = mapped_column(default=0.0)
    """Unix time of its last request for work, accurate to about ten seconds."""
    contract: Mapped[str] = mapped_column(String(66), default="")
    """Digest of the execution contract that it last named. Empty if it judges only in the calibrated lane."""
    active_at: Mapped[float] = mapped_column(default=0.0)
    """Unix time at which it last committed a verdict, let a turn of its contract pass, returned or changed contract."""
    passed_at: Mapped[float] = mapped_column(default=0.0)
    """Unix time at which it last let a turn of its contract pass (see `coordinator.domain.exact_lane`)."""
    passes: Mapped[int] = mapped_column(default=0)
    """Number of turns of its contract that it has let pass since it last decided a replay under that contract."""
    lapsed: Mapped[int] = mapped_column(default=0)
    """Number of turns that it took and did not finish in time."""
    slow: Mapped[int] = mapped_column(default=0)
    """Number of verdicts that it committed in the last fifth of its time."""
    contradicted: Mapped[int] = mapped_column(default=0)
    """Number of its verdicts that were the opposite of the quorum's."""
    judged: Mapped[int] = mapped_column(default=0)
    """Number of its verdicts that were revealed by the time their submission was decided."""
    failed_at: Mapped[float] = mapped_column(default=0.0)
    """Unix time of its last lapsed or passed turn or contradicted verdict. 0 if there was none."""


class TurnRow(Base):
    """One validator's turn at one submission: opened, taken, committed, revealed or lapsed."""

    __tablename__ = "judgements"
    id: Mapped[int] = mapped_column(Number, primary_key=True)
    receipt_hash: Mapped[str] = mapped_column(ForeignKey("submissions.receipt_hash"), index=True)
    validator: Mapped[str | None] = mapped_column(String(42))
    full: Mapped[bool]
    """Whether the validator replays the submission, instead of running only the cheap checks."""
    opened_at: Mapped[float]
    deadline: Mapped[float] = mapped_column(default=0.0)
    """Unix time by which the validator must commit or, once all validators have committed, reveal."""
    commitment: Mapped[str | None] = mapped_column(String(66))
    verdict: Mapped[Verdict | None] = mapped_column(VerdictColumn)
    signature: Mapped[str | None] = mapped_column(String(132))
    live_groups: Mapped[int | None]
    """Number of live groups according to the verdict's evidence. None if the evidence has no valid number."""
    drawn_rows_false: Mapped[bool] = mapped_column(default=False)
    """Whether the evidence of a rejection says that the drawn rows alone prove its reason. False before the reveal."""
    drew_other_rows: Mapped[bool] = mapped_column(default=False)
    """Whether a reorganization replaced the block that drew the rows, so that the validator judged other rows."""
    sums: Mapped[Sums | None] = mapped_column(SumsColumn)
    """Sums of the limited statistics according to the verdict's evidence. None if the evidence has no valid sums."""
    lapsed: Mapped[bool] = mapped_column(default=False)
    """Whether the turn has ended without counting, because it took too long or because a replay replaces it."""
    __table_args__ = (
        Index("ix_judgements_validator_id", "validator", "id"),
        Index(
            "ix_judgements_open",
            "validator",
            "id",
            sqlite_where=text("verdict IS NULL AND lapsed IS 0"),
            postgresql_where=text("verdict IS NULL AND lapsed IS false"),
        ),
    )


class EpochRow(Base):
    """A settlement period. The object store has its leaves under `data_hash`."""

    __tablename__ = "epochs"
    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=False)
    work_root: Mapped[str] = mapped_column(String(66))
    reward_root: Mapped[str] = mapped_column(String(66))
    data_hash: Mapped[str] = mapped_column(String(66))
    leaf_count: Mapped[int]
    units: Mapped[int] = mapped_column(Number)
    verdicts: Mapped[int] = mapped_column(Number, default=0)
    """Number of verdicts for which the epoch pays the pool's fee. 0 until the epoch is closed."""
    previous_hash: Mapped[str] = mapped_column(String(66))
    """Header hash of the previous epoch. Zero for the first epoch and after a disabled one."""
    closed_at: Mapped[float]
    header_hash: Mapped[str | None] = mapped_column(String(66))
    """Hash of the epoch's header, from the event EpochPosted. None until the epoch is posted."""
    final_at: Mapped[int | None] = mapped_column(Number)
    """Unix time at which rewards can be claimed, from the event EpochPosted. None until the epoch is posted."""
    reward: Mapped[str | None] = mapped_column(String(78))
    """Reward of this epoch in the token's smallest unit, as decimal text. None until the epoch is posted."""
    cumulative: Mapped[str | None] = mapped_column(String(78))
    """Total rewards up to this epoch, in the format of `reward`. None until the epoch is posted."""
    posted_block: Mapped[int | None] = mapped_column(Number)
    disabled: Mapped[bool] = mapped_column(default=False)
    settled: Mapped[bool] = mapped_column(default=False)
    """Whether all submissions of the posted epoch are marked as settled."""


class RewardRow(Base):
    """An account's total earnings up to the end of an epoch, in the token's smallest unit, as decimal text."""

    __tablename__ = "rewards"
    epoch: Mapped[int] = mapped_column(ForeignKey("epochs.number"), primary_key=True)
    contributor: Mapped[str] = mapped_column(String(42), primary_key=True)
    """Address of the account, which may also be a validator."""
    cumulative: Mapped[str] = mapped_column(String(78))
    verdicts: Mapped[int] = mapped_column(Number, default=0)
    """Number of verdicts of the account for which this epoch pays the pool's fee."""


class CaseRow(Base):
    """A slashing case, as the chain reports it. A receipt has at most one."""

    __tablename__ = "cases"
    receipt_hash: Mapped[str] = mapped_column(String(66), primary_key=True)
    node: Mapped[str] = mapped_column(String(42))
    contributor: Mapped[str] = mapped_column(String(42))
    state: Mapped[CaseState] = mapped_column(_states(CaseState), default=CaseState.LOCKED)
    block_number: Mapped[int] = mapped_column(Number)
    """Number of the block that opened the case or, once it is closed, the block that closed it."""
    transaction_hash: Mapped[str] = mapped_column(String(66))
    """Hash of the transaction in that block."""
    reason: Mapped[int] = mapped_column(default=0)
    """Value of the `Reason` for which the case was opened. 0 if a version before this column recorded the case."""
    amount: Mapped[str | None] = mapped_column(String(78))
    """Stake that the case locks, in the token's smallest unit, as decimal text. None if the reason is 0."""
    veto_until: Mapped[int | None] = mapped_column(Number)
    """Unix time until which the case can be vetoed. None if the reason is 0."""
    opened_transaction: Mapped[str | None] = mapped_column(String(66))
    """Hash of the transaction that opened the case. None if the reason is 0."""


class BlockRow(Base):
    """A block that the follower has read. By its hash, the follower detects a reorganization."""

    __tablename__ = "blocks"
    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=False)
    hash: Mapped[str] = mapped_column(String(66))


class FactRow(Base):
    """A named number, for example the number of the last lease."""

    __tablename__ = "facts"
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[int] = mapped_column(Number)


class IdentityRow(Base):
    """A value that identifies the network of this database (see `coordinator.identity`). Example: "pool", "7"."""

    __tablename__ = "identity"
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[str] = mapped_column(Text)
