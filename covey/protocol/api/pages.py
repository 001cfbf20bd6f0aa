"""Bodies of the public routes that pages for people are made of (`covey coordinator pages`).

A list has at most 200 items and names the key from which the next part follows. Amounts are in the token's smallest
unit. All values can be read by anyone, so no completion of an open epoch is among them.
"""

from covey.protocol.api.common import AddressText, Body, HashText, UInt64, Word
from covey.protocol.api.overview import Amount
from covey.protocol.api.trainer import StepPoint


class NodeItemView(Body):
    """A node in a list."""

    node: AddressText
    contributor: AddressText
    state: Word
    """"removed", "suspended", "dead", "unhealthy", "waiting" or "busy"."""
    suspended: str
    accepted: UInt64
    dropped: UInt64
    cached_version: UInt64 | None
    silent_seconds: float | None
    """Seconds since it was heard. None: it was never heard."""


class NodeListView(Body):
    """Nodes by address."""

    items: tuple[NodeItemView, ...]
    after: str | None
    """Value of `after` for the next part. None: this is the last one."""


class SubmissionItemView(Body):
    """A submission in a list."""

    receipt_hash: HashText
    task: UInt64
    node: AddressText
    contributor: AddressText
    policy_version: UInt64
    state: Word
    reason: Word
    replayed: bool | None
    """Whether validators replay all its rows. None: that is not drawn yet."""
    groups: UInt64
    live_groups: UInt64
    units: UInt64
    """Units that are paid. Claimed ones while it is undecided."""
    lease: UInt64
    work_key: HashText
    """SHA-256 of its file."""
    signed_at: UInt64
    """Unix seconds of the countersignature."""
    decided_at: float | None
    step: UInt64 | None
    """Step that was trained on it. None: none yet."""
    epoch: UInt64 | None
    epoch_state: Word
    """"none", "closing", "closed", "posted", "final" or "disabled"."""
    final_at: UInt64 | None
    """Unix seconds from which the pay can be claimed. None: its epoch is not posted, or it has none."""
    pay: Amount
    """Reward of the units of an accepted submission. 0 for all others."""
    transaction: HashText | None
    """Transaction that posted its epoch. None: it is not posted, or by another database."""
    case: Word | None
    """State of the slashing case about it. None: there is none."""
    case_transaction: HashText | None


class SubmissionListView(Body):
    """Submissions, newest first."""

    items: tuple[SubmissionItemView, ...]
    before: UInt64 | None
    """Value of `before` for the next part. None: this is the last one."""


class EpochItemView(Body):
    """An epoch."""

    epoch: UInt64
    state: Word
    """"closed", "posted", "final" or "disabled"."""
    work_root: HashText
    reward_root: HashText
    data_hash: HashText
    previous_hash: HashText
    header_hash: HashText | None
    leaf_count: UInt64
    units: UInt64
    closed_at: float
    posted_block: UInt64 | None
    final_at: UInt64 | None
    """Unix seconds from which its rewards can be claimed. None: it is not posted."""
    disable_until: UInt64 | None
    """Unix seconds until which the arbiter can disable it. None: it is not posted."""
    reward: Amount | None
    cumulative: Amount | None
    transaction: HashText | None


class EpochListView(Body):
    """Epochs, newest first."""

    items: tuple[EpochItemView, ...]
    before: UInt64 | None
    """Value of `before` for the next part. None: this is the last one."""


class LeafView(Body):
    """A leaf of an epoch, with what shows that it is in the tree whose root is on chain."""

    epoch: UInt64
    fields: dict[str, str]
    """Fields of the leaf in the order in which they are encoded. Numbers are decimal text."""
    proof: tuple[HashText, ...]
    """Sibling hashes from the leaf to the root."""
    work_root: HashText
    header_hash: HashText | None
    """Hash of the epoch's header on chain, which contains the root. None: it is not posted."""


class PolicyWayView(Body):
    """A way to fetch a policy."""

    kind: Word
    """"full", or "delta" if it needs an earlier policy."""
    size: UInt64
    """Size in bytes, as the sources say."""
    sources: tuple[str, ...]
    """Base URLs of the origins and relays that serve it."""


class PolicyItemView(Body):
    """A policy, with the batch that the next one is trained on."""

    step: UInt64
    state: Word
    record_hash: HashText | None
    """None: it is not on chain yet."""
    block: UInt64
    """Number of the block that published it. 0: it is not on chain yet."""
    accepted_groups: UInt64
    """Accepted groups that were generated with it."""
    batch_groups: UInt64
    batch_live_groups: UInt64
    ways: tuple[PolicyWayView, ...]
    """Ways to fetch it, whole ones first. Empty: no origin or relay has answered that it serves the policy."""


class PolicyListView(Body):
    """Policies, newest first."""

    items: tuple[PolicyItemView, ...]
    before: UInt64 | None
    """Value of `before` for the next part. None: this is the last one."""


class CaseItemView(Body):
    """A slashing case."""

    receipt_hash: HashText
    node: AddressText
    contributor: AddressText
    state: Word
    block: UInt64
    """Number of the block in which it was opened or, later, closed."""
    transaction: HashText


class CaseVoteView(Body):
    """A validator's verdict about the submission of a case."""

    validator: AddressText
    outcome: Word
    """"accept", "reject" or "unknown"."""
    reason: Word
    replayed: bool
    """Whether it replayed all rows."""
    opened_at: float
    """Unix seconds at which its turn was opened."""


class CaseDetail(CaseItemView):
    """A slashing case with its votes and the window of its veto."""

    reason: Word
    """Reason for which the case was opened. "unknown" if an earlier version recorded it."""
    amount: Amount | None
    """Stake that the case locks. None if an earlier version recorded it, as for the next two fields."""
    veto_until: UInt64 | None
    """Unix seconds until which the arbiter can veto the case."""
    opened_transaction: HashText | None
    decided_at: float | None
    """Unix seconds at which the quorum decided. None: this coordinator does not know the submission."""
    sentence: str
    """What became of the case, or what can still become of it."""
    votes: tuple[CaseVoteView, ...]
    """Revealed verdicts. Empty until the submission is decided."""


class CaseListView(Body):
    """Cases, newest first."""

    items: tuple[CaseItemView, ...]
    before: str | None
    """Value of `before` for the next part. None: this is the last one."""


class JudgeView(Body):
    """A validator."""

    validator: AddressText
    bond: Amount | None
    """Its bond. None: it is no validator of the pool any more, or the chain's node has not answered."""
    is_active: bool
    """Whether the court counts its verdicts."""
    silent_seconds: float | None
    judged: UInt64
    lapsed: UInt64
    slow: UInt64
    contradicted: UInt64


class JudgeListView(Body):
    """All validators by address."""

    items: tuple[JudgeView, ...]


class AddressView(Body):
    """A contributor: its standing, what it has earned, and its nodes."""

    address: AddressText
    suspended: str
    strikes: UInt64
    pardons: UInt64
    dropped: UInt64
    staked: Amount | None
    """Stake on chain. None: it is not looked up yet."""
    locked: Amount | None
    """Stake that cases lock."""
    claimed: Amount | None
    """Rewards that it has claimed on chain. None: they are not looked up yet."""
    validator_bond: Amount | None
    """Its bond as a validator. None: it is not a validator, or the chain's node has not answered."""
    open_challenges: UInt64
    """Number of open omission challenges about its receipts."""
    omission_bonds_wei: Amount
    """Bonds in ether that these challenges hold, in wei."""
    required: Amount
    """Stake that its nodes require."""
    submissions: UInt64
    undecided: UInt64
    accepted: UInt64
    settled: Amount
    """Pay of its submissions in epochs, and fees for its verdicts in closed ones. Each epoch's pay is rounded down."""
    waiting: Amount
    """Pay of its accepted submissions that no epoch holds yet, as if one epoch held them all."""
    day: Amount
    """Pay of its submissions of the last 24 hours that are accepted."""
    expected_day: Amount
    """Pay of a day at the rate of its accepted submissions of the last hour."""
    sentence: str
    """Whether work comes to its nodes, and otherwise why not."""
    nodes: tuple[NodeItemView, ...]
    cases: tuple[CaseItemView, ...]


class MinuteView(Body):
    """What was submitted and decided in a minute."""

    start: UInt64
    """Unix seconds at which the minute began."""
    submitted: UInt64
    accepted: UInt64
    rejected: UInt64
    void: UInt64
    units: UInt64


class RatesView(Body):
    """The last minutes, oldest first. A minute in which nothing happened is left out."""

    items: tuple[MinuteView, ...]


class CurvePointView(StepPoint):
    """Metrics of a step."""

    step: UInt64
    reported_at: float
    """Unix seconds at which the trainer reported them."""


class CurveView(Body):
    """The course of the training, oldest step first."""

    items: tuple[CurvePointView, ...]
