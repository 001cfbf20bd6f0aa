"""The coordinator's tables.  Rows are the truth; a Celery message is only a trigger.

States and their lawful moves are those of `covey.protocol.status`.  Times are Unix seconds.
"""

from enum import StrEnum

from sqlalchemy import JSON, Enum, ForeignKey, Index, MetaData, String, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from coordinator.db.column_types import DecisionColumn, Number, SumsColumn, VerdictColumn
from covey.protocol.messages import Verdict
from covey.protocol.running_sums import Sums
from covey.protocol.status import CaseState, StepState, SubmissionState, TaskState
from covey.protocol.verdict import Decision


def _states(kind: type[StrEnum]) -> Enum:
    """A column of states, stored as text and loaded as the enumeration."""
    return Enum(kind, native_enum=False, length=16)


def _index_some(name: str, *columns: str, where: str) -> Index:
    """Index the rows for which a condition holds, which are few."""
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
    """A registered node and its standing."""

    __tablename__ = "nodes"
    address: Mapped[str] = mapped_column(String(42), primary_key=True)
    contributor: Mapped[str] = mapped_column(String(42), index=True)
    instance: Mapped[str] = mapped_column(String(32), default="")
    """Name of the worker that was heard last. Empty: none was heard yet."""
    contract: Mapped[str] = mapped_column(String(66), default="")
    """Digest of its execution contract. Empty: it works in the calibrated lane."""
    seen_at: Mapped[float] = mapped_column(default=0.0)
    """When that was, in a heartbeat or a claim."""
    waiting_until: Mapped[float] = mapped_column(default=0.0, index=True)
    """Time in Unix seconds until which a long poll of the node is open, inclusive. Only nodes that ask are served. A
    claim that does not wait asks at this moment only."""
    free_slots: Mapped[int] = mapped_column(default=0)
    cached_version: Mapped[int | None] = mapped_column(Number)
    accepted: Mapped[int] = mapped_column(default=0)
    """Accepted submissions for its contributor, since one of the contributor's nodes was caught cheating last."""
    dropped: Mapped[int] = mapped_column(default=0)
    cooldown_until: Mapped[float] = mapped_column(default=0.0)
    """Unix seconds until which the node gets no task."""
    suspended: Mapped[str] = mapped_column(String(32), default="")
    """Reason for which nothing is assigned any more (`coordinator.domain.nodes`). Empty: it is not suspended."""
    removed: Mapped[bool] = mapped_column(default=False)
    """Whether its contributor vouches for it no more. Registration takes this back, and no suspension."""
    registered_block: Mapped[int] = mapped_column(Number, default=0)
    """Number of the newest block when it registered, for the first time or after its removal."""

    @property
    def barred(self) -> str:
        """Why nothing is assigned to the node. Empty: tasks are assigned."""
        return self.suspended or ("removed" if self.removed else "")


class ContributorRow(Base):
    """A wallet that vouches for nodes, from the registration of its first node on."""

    __tablename__ = "contributors"
    address: Mapped[str] = mapped_column(String(42), primary_key=True)
    strikes: Mapped[int] = mapped_column(default=0)
    """Soft rejections and repeated drops of all its nodes, removed ones included."""
    accepted_since: Mapped[int] = mapped_column(default=0)
    """Number of submissions accepted since the last strike was taken back; 0 without strikes."""
    accepted: Mapped[int] = mapped_column(default=0)
    """Accepted submissions of all its nodes, since one of them was caught cheating last."""
    dropped: Mapped[int] = mapped_column(default=0)
    """Leases that its nodes dropped or held when they were removed."""
    suspended: Mapped[str] = mapped_column(String(32), default="")
    """Reason for which none of its nodes is served, future ones included. Empty: they are served."""
    pardons: Mapped[int] = mapped_column(default=0)
    """Number of times that the operator took back all strikes."""
    staked: Mapped[str | None] = mapped_column(String(78))
    """Stake in the token's smallest unit (decimal text). None: it is not looked up yet."""
    locked: Mapped[str | None] = mapped_column(String(78))
    """Stake that cases lock, like `staked`. It may be larger than `staked`."""
    stake_block: Mapped[int | None] = mapped_column(Number)
    """Number of the block at which both were looked up."""


class StepRow(Base):
    """A policy and the batch that the next one is trained on."""

    __tablename__ = "steps"
    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=False)
    record_hash: Mapped[str] = mapped_column(String(66), default="")
    """Empty while the trainer has the policy and the chain does not."""
    block_number: Mapped[int] = mapped_column(Number, default=0)
    state: Mapped[StepState] = mapped_column(_states(StepState), default=StepState.OPEN)
    packed_groups: Mapped[int] = mapped_column(default=0)
    """Groups of its batch. 0 until it is packed."""
    packed_live_groups: Mapped[int] = mapped_column(default=0)
    """Groups of its batch whose rewards are not all equal."""
    accepted_groups: Mapped[int] = mapped_column(default=0)
    """Groups of all accepted work of this policy, in whichever batch."""


class TaskRow(Base):
    """An order for `groups` groups, leased to one node.  An expired task is planned anew under another id."""

    __tablename__ = "tasks"
    id: Mapped[int] = mapped_column(Number, primary_key=True)
    policy_version: Mapped[int] = mapped_column(ForeignKey("steps.number"))
    groups: Mapped[int]
    state: Mapped[TaskState] = mapped_column(_states(TaskState), default=TaskState.PENDING)
    node: Mapped[str | None] = mapped_column(ForeignKey("nodes.address"))
    lease: Mapped[int | None] = mapped_column(Number, unique=True)
    offered_until: Mapped[float] = mapped_column(default=0.0)
    """Until when the lease may be collected."""
    collected_at: Mapped[float | None]
    """When the node collected the lease. None: not yet."""
    ends_at: Mapped[float | None]
    """When the collected lease ends. None: it is not collected."""
    contract: Mapped[str] = mapped_column(String(66), default="")
    """Execution contract of its node at collection, under which its file is judged. Empty: the calibrated lane."""
    __table_args__ = (
        Index("ix_tasks_state_node", "state", "node"),
        Index("ix_tasks_state_collected_at", "state", "collected_at", "node"),
        Index("ix_tasks_state_policy_version", "state", "policy_version", "id"),
    )

    @property
    def expires_at(self) -> float:
        """When the lease, or the offer of a lease that is not collected yet, expires."""
        return self.offered_until if self.ends_at is None else self.ends_at


class SubmissionRow(Base):
    """A receipt with its countersignature, and what became of it."""

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
    """Claimed by the receipt until decided, counted by the validators after."""
    deadline: Mapped[int] = mapped_column(Number)
    signature: Mapped[str] = mapped_column(String(132))
    receipt_units: Mapped[int] = mapped_column(Number)
    signed_at: Mapped[int] = mapped_column(Number)
    """Time of the countersignature; the draw comes `draw_seconds` later."""
    latest_epoch: Mapped[int] = mapped_column(Number)
    countersignature: Mapped[str] = mapped_column(String(132))
    state: Mapped[SubmissionState] = mapped_column(_states(SubmissionState), default=SubmissionState.SUBMITTED)
    draw: Mapped[str | None] = mapped_column(String(66))
    """Hash of the drawing block; None until that block exists, and again when a reorganisation removes it."""
    draw_block: Mapped[int | None] = mapped_column(Number)
    """Number of the drawing block; None as long as `draw` is."""
    audited: Mapped[bool | None]
    """Whether a quorum replays it. It may be so from intake on, or be ordered later; None: that is not drawn yet."""
    confirmed: Mapped[bool] = mapped_column(default=False)
    """Whether a second validator repeats its cheap checks."""
    decision: Mapped[Decision | None] = mapped_column(DecisionColumn)
    """What a quorum decided. None until then. Settlement and a disabled epoch leave it as it is."""
    reason: Mapped[int] = mapped_column(default=0)
    evidence_hash: Mapped[str] = mapped_column(String(66), default="0x" + "00" * 32)
    decided_at: Mapped[float | None]
    step: Mapped[int | None] = mapped_column(ForeignKey("steps.number"), index=True)
    """Whose batch it belongs to, once accepted and packed."""
    epoch: Mapped[int | None] = mapped_column(ForeignKey("epochs.number"))
    contract: Mapped[str] = mapped_column(String(66), default="")
    """Contract of its lease. Only validators with the same one judge it. Empty: all validators do."""
    canary: Mapped[int] = mapped_column(default=0)
    """A `CanaryKind`, fixed at intake."""
    consent: Mapped[str] = mapped_column(String(132), default="")
    """Signature of its contributor that it is a canary. Empty: it is ordinary."""
    live_groups: Mapped[int] = mapped_column(default=0)
    """Groups of accepted work whose rewards are not all equal (`coordinator.domain.panel`)."""
    next_check_at: Mapped[float] = mapped_column(default=0.0)
    """Unix seconds from which there may be something to do for it while it is undecided."""
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
        """Whether validators accepted it after a replay."""
        return self.decision is Decision.ACCEPT and bool(self.audited)


class ValidatorRow(Base):
    """What the coordinator has seen of a validator.  Who is one, the chain says."""

    __tablename__ = "validators"
    address: Mapped[str] = mapped_column(String(42), primary_key=True)
    seen_at: Mapped[float] = mapped_column(default=0.0)
    """When it last asked for work, to about ten seconds."""
    contract: Mapped[str] = mapped_column(String(66), default="")
    """Digest of its execution contract, which it named then. Empty: it judges in the calibrated lane alone."""
    active_at: Mapped[float] = mapped_column(default=0.0)
    """When it last began to ask under its contract, committed to a verdict or let a turn of its contract pass."""
    passed_at: Mapped[float] = mapped_column(default=0.0)
    """When it last let a turn of its contract pass (`coordinator.domain.exact_lane`)."""
    passes: Mapped[int] = mapped_column(default=0)
    """Number of turns of its contract that it let pass since it last decided a replay under it."""
    lapsed: Mapped[int] = mapped_column(default=0)
    """Turns that it took and did not finish in time."""
    slow: Mapped[int] = mapped_column(default=0)
    """Verdicts to which it committed in the last fifth of its time."""
    contradicted: Mapped[int] = mapped_column(default=0)
    """Verdicts of its own that were the opposite of a quorum's."""
    judged: Mapped[int] = mapped_column(default=0)
    """Verdicts of its own that were revealed when a submission was decided."""
    failed_at: Mapped[float] = mapped_column(default=0.0)
    """When one of the two last happened."""


class TurnRow(Base):
    """One validator's turn at one submission: opened, taken, committed, revealed or lapsed."""

    __tablename__ = "judgements"
    id: Mapped[int] = mapped_column(Number, primary_key=True)
    receipt_hash: Mapped[str] = mapped_column(ForeignKey("submissions.receipt_hash"), index=True)
    validator: Mapped[str | None] = mapped_column(String(42))
    full: Mapped[bool]
    """Whether it is a replay; otherwise the cheap checks alone."""
    opened_at: Mapped[float]
    deadline: Mapped[float] = mapped_column(default=0.0)
    """Unix seconds by which the validator that has taken the turn must commit and, once all have committed, reveal."""
    commitment: Mapped[str | None] = mapped_column(String(66))
    verdict: Mapped[Verdict | None] = mapped_column(VerdictColumn)
    signature: Mapped[str | None] = mapped_column(String(132))
    live_groups: Mapped[int | None]
    """What the verdict's evidence says; None: nothing, or nonsense."""
    drawn_rows_false: Mapped[bool] = mapped_column(default=False)
    """Whether the evidence of a rejection says that the drawn rows alone show why. False before the reveal."""
    drew_other_rows: Mapped[bool] = mapped_column(default=False)
    """Whether a reorganization removed the block that drew the rows of this turn, so that it judged other rows."""
    sums: Mapped[Sums | None] = mapped_column(SumsColumn)
    """Sums in the verdict's evidence, of the statistics with limits. None: nothing, or nonsense."""
    lapsed: Mapped[bool] = mapped_column(default=False)
    """Whether the turn is over and does not count. It took too long, or a replay is asked for now."""
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
    """A settlement period; its leaves lie in the store under `data_hash`."""

    __tablename__ = "epochs"
    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=False)
    work_root: Mapped[str] = mapped_column(String(66))
    reward_root: Mapped[str] = mapped_column(String(66))
    data_hash: Mapped[str] = mapped_column(String(66))
    leaf_count: Mapped[int]
    units: Mapped[int] = mapped_column(Number)
    previous_hash: Mapped[str] = mapped_column(String(66))
    """Header hash of the epoch before, disabled or not; zero for the first."""
    closed_at: Mapped[float]
    header_hash: Mapped[str | None] = mapped_column(String(66))
    """This and the next three: as EpochPosted told them; None until then."""
    final_at: Mapped[int | None] = mapped_column(Number)
    reward: Mapped[str | None] = mapped_column(String(78))
    """Like `cumulative` in the token's smallest unit."""
    cumulative: Mapped[str | None] = mapped_column(String(78))
    posted_block: Mapped[int | None] = mapped_column(Number)
    disabled: Mapped[bool] = mapped_column(default=False)
    settled: Mapped[bool] = mapped_column(default=False)
    """Whether its submissions are marked as settled, after it was posted."""


class RewardRow(Base):
    """What a contributor had earned in all by the end of an epoch, in the token's smallest unit (decimal text)."""

    __tablename__ = "rewards"
    epoch: Mapped[int] = mapped_column(ForeignKey("epochs.number"), primary_key=True)
    contributor: Mapped[str] = mapped_column(String(42), primary_key=True)
    cumulative: Mapped[str] = mapped_column(String(78))


class CaseRow(Base):
    """A slashing case as the chain tells it; a receipt has one at most."""

    __tablename__ = "cases"
    receipt_hash: Mapped[str] = mapped_column(String(66), primary_key=True)
    node: Mapped[str] = mapped_column(String(42))
    contributor: Mapped[str] = mapped_column(String(42))
    state: Mapped[CaseState] = mapped_column(_states(CaseState), default=CaseState.LOCKED)
    block_number: Mapped[int] = mapped_column(Number)
    """Where it was opened or, later, closed."""
    transaction_hash: Mapped[str] = mapped_column(String(66))


class ChallengeRow(Base):
    """An omission challenge as the chain tells it: somebody says that no epoch holds a receipt."""

    __tablename__ = "challenges"
    receipt_hash: Mapped[str] = mapped_column(ForeignKey("submissions.receipt_hash"), primary_key=True)
    block_number: Mapped[int] = mapped_column(Number)
    """Where it was opened."""
    decided_block: Mapped[int | None] = mapped_column(Number)
    """Where it was answered or upheld; None while it is open."""
    answer: Mapped[str | None] = mapped_column(String(96))
    """Key of the intent that answers it; None until there is one."""
    tries: Mapped[int] = mapped_column(default=0)
    """Number of intents that were written to answer it."""


class BlockRow(Base):
    """A followed block: where the follower stands, and how it notices a reorganisation."""

    __tablename__ = "blocks"
    number: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=False)
    hash: Mapped[str] = mapped_column(String(66))


class FactRow(Base):
    """A named value: the last lease number, whether the pool has ended."""

    __tablename__ = "facts"
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[int] = mapped_column(Number)


class IdentityRow(Base):
    """What tells the network of this database from others (`coordinator.identity`).  Example: pool, "7"."""

    __tablename__ = "identity"
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class IntentRow(Base):
    """The outbox: a transaction to send, written in the same database transaction as the state that wants it."""

    __tablename__ = "intents"
    position: Mapped[int] = mapped_column(Number, primary_key=True)
    key: Mapped[str] = mapped_column(String(96), unique=True)
    recipient: Mapped[str] = mapped_column(String(42))
    data: Mapped[str] = mapped_column(Text)
    value: Mapped[str] = mapped_column(String(78))
    label: Mapped[str] = mapped_column(String(96))
    state: Mapped[str] = mapped_column(String(8), index=True)
    """An `IntentState`."""
    nonce: Mapped[int | None] = mapped_column(Number)
    attempts: Mapped[list[dict[str, str | int]]] = mapped_column(JSON, default=list)
    """Signed transactions of this intent, oldest first, all with one nonce."""
    offered_at: Mapped[int | None] = mapped_column(Number)
    """Number of the newest block when it was signed last, or when a reorganisation was found to have dropped it."""
    block_number: Mapped[int | None] = mapped_column(Number)
    """This and the next two: where it was mined; None while it is in no block."""
    block_hash: Mapped[str | None] = mapped_column(String(66))
    transaction_hash: Mapped[str | None] = mapped_column(String(66))
    is_final: Mapped[bool] = mapped_column(default=False)
    """Whether its block is final, so that it is not looked at any more."""
    refused_first: Mapped[int | None] = mapped_column(Number)
    """This and the next two: the `Refusal` of an intent that is not signed; None when there is none."""
    refused_last: Mapped[int | None] = mapped_column(Number)
    refused_heads: Mapped[int | None]
    reason: Mapped[str] = mapped_column(Text, default="")
