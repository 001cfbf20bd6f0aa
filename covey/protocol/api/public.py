"""Bodies of the coordinator's public routes, which anyone may read without a signature.

They contain hashes, states and sums. A completion can be read once its epoch is closed. A party that has a
stake checks all these values against the chain.
"""

from pydantic import Field

from covey.protocol.api.common import AddressText, Body, HashText, ReceiptBody, SignatureText, UInt64, VerdictBody, Word
from covey.protocol.ids import PoolId, Step, TaskId
from covey.protocol.learning_signs import LearningSign
from covey.protocol.running_sums import StatisticName

MAX_ROWS = 200
"""Maximum number of rows of a list in one answer."""


class Requirements(Body):
    """What a worker's machine must have, in human-readable form. It is derived from the pool's parameters."""

    engine: str
    """Engine that the thresholds were calibrated for. "any" accepts every engine, in float32."""
    compute_dtype: str
    """Number format in which the engine computes, for example "bfloat16"."""
    hardware: str
    """Accelerator's name as torch reports it, or "cpu". "any" accepts all hardware."""
    execution_contracts: dict[HashText, str] = Field(default_factory=dict)
    """Execution contracts of the exact lane by digest, each described on one line. Empty: there is no exact lane."""
    max_tokens: int
    """Maximum number of tokens of a prompt and its completion together."""


class PoolView(Body):
    """Everything that a new participant needs to know about a pool.

    A party that has a stake checks it against the chain.
    """

    pool: PoolId
    params: str
    """Canonical JSON of `PoolParams`."""
    params_hash: HashText
    """keccak256 of `params`. The same hash is on chain."""
    terms: dict[str, AddressText | HashText | bool | int]
    """The pool's terms in the contract, by field name of `PoolTerms`. Amounts are in the token's smallest unit."""
    requirements: Requirements
    operator: AddressText
    signer: AddressText
    """Account that signs promises and posts epochs, whose key the coordinator has."""
    chain_id: int
    contracts: dict[str, AddressText]
    token: AddressText
    start_block: UInt64
    """First block that can contain events of the contracts."""
    start_hash: HashText | None = None
    """Hash of block `start_block`. It distinguishes the chain from others with the same id. None if it is unknown."""
    relays: tuple[str, ...]
    """Base URLs of the relays that the operator has configured."""


class RewardView(Body):
    """What a contributor had earned in total by the end of `epoch`, with the proof for EpochLedger.claim."""

    epoch: UInt64
    contributor: AddressText
    cumulative: int = Field(ge=0, lt=1 << 256)
    proof: tuple[HashText, ...] = Field(max_length=64)


class EpochView(Body):
    """An epoch: the fields of its header and, once it is posted, the fields of its record in EpochLedger."""

    epoch: UInt64
    work_root: HashText
    reward_root: HashText
    leaf_count: int
    units: int
    verdicts: int = 0
    """Number of verdicts for which the epoch pays a fee. Coordinators count none yet."""
    data_hash: HashText
    """SHA-256 of the epoch's file, which contains its leaves and rewards."""
    previous_hash: HashText
    posted: bool
    disabled: bool
    header_hash: HashText | None
    final_at: int | None
    reward: int | None
    cumulative: int | None


class StepView(Body):
    """A step of the training run."""

    step: Step
    state: str
    record_hash: HashText | None
    """Record hash of the step's policy. None until the policy is on chain. The trainer does not wait for that."""
    groups_accepted: int
    """Number of accepted groups that were generated with this step's policy."""
    groups_sampled: int
    """Number of groups in this step's batch. While the step is open, it counts the accepted groups that are fresh
    enough and not yet in a batch.
    """
    groups_live: int
    """Number of live groups among `groups_sampled`, as reported by validators."""
    is_capped: bool
    """Whether the batch was closed by the cap of the online filter: it has the maximum number of groups, but too
    few live ones.
    """


class SubmissionView(Body):
    """A submission without its completions, which are private until its epoch closes."""

    receipt_hash: HashText
    task: TaskId
    node: AddressText
    contributor: AddressText
    policy_version: Step
    state: Word
    reason: Word
    units: UInt64
    epoch: UInt64 | None
    commitment: HashText
    """Hash of receipt hash, salt and kind (`covey.protocol.canaries`). It is public from the countersignature on."""
    salt: HashText | None
    """Salt of the commitment. None until the submission is decided."""
    kind: int | None
    """A `CanaryKind`: 0 is ordinary, 1 is a canary to be rejected, 2 is a canary to be accepted. None until the
    submission is decided.
    """
    consent: SignatureText | None = None
    """Signature of the contributor that the submission is a canary. None if it is not decided, or ordinary."""
    evidence_hashes: tuple[HashText, ...] = Field(max_length=256)
    """Evidence hashes of all verdicts, which `covey validator audit` uses to repeat each judgement. Empty until
    the submission is decided.
    """


class SubmissionDetail(SubmissionView):
    """Everything public about one submission. The additional fields are None or empty until it is decided."""

    receipt: ReceiptBody | None
    verdicts: tuple[VerdictBody, ...] = Field(max_length=256)
    signatures: tuple[SignatureText, ...] = Field(max_length=256)
    """Validators' signatures of the verdicts, in the order of `verdicts`."""


class ValidatorView(Body):
    """Statistics of one validator's verdicts. Example: judged=40, canaries=3, missed=0."""

    judged: UInt64
    """Number of the validator's verdicts on submissions that are decided."""
    canaries: UInt64
    """Number of the verdicts in `judged` that accept or reject a canary that was replayed."""
    missed: UInt64
    """Number of the verdicts in `canaries` that were wrong."""
    lapsed: UInt64
    """Number of turns that the validator took and did not finish in time."""
    contradicted: UInt64
    """Number of the validator's verdicts for which a quorum decided the opposite."""
    slow: UInt64 = 0
    """Number of the verdicts to which the validator committed in the last fifth of its time."""
    bond: int | None = Field(default=None, ge=0, lt=1 << 256)
    """The validator's bond, in the token's smallest unit. None: it is no validator of the pool any more."""
    is_active: bool = False
    """Whether the court counts its verdicts: it has its bond, and its seat for long enough."""


class NodeView(Body):
    """A registered node. Example: suspended="", accepted=12."""

    contributor: AddressText
    suspended: str = Field(max_length=32)
    """Why the node gets no tasks. "removed" if its contributor has removed it and it is not suspended. Empty if it
    gets tasks.
    """
    accepted: UInt64
    """Number of the node's accepted submissions for this contributor. It is reset to 0 when any node of the
    contributor is caught cheating.
    """


class SumView(Body):
    """A running sum of a node. Example: total=2.0, items=9000, limit=2.5, suspension_limit=2.9."""

    total: float = Field(ge=0, allow_inf_nan=False)
    """Sum over the items that one validator replayed. The other validators of the node are higher or lower."""
    items: UInt64
    """Number of windows or tokens."""
    limit: float = Field(ge=0, allow_inf_nan=False)
    """Limit above which the node's work is replayed whole."""
    suspension_limit: float = Field(ge=0, allow_inf_nan=False)
    """Limit above which the node is suspended if it is also far above other nodes. With this limit the validator that
    counts may be another one, which replayed other items.
    """


class NodeDetail(NodeView):
    """A node, and why it gets no task."""

    node: AddressText
    health: str = Field(max_length=16)
    """"healthy", "unhealthy" or "dead", by the time since it was heard."""
    why: str = Field(max_length=32)
    """Stable name of the reason for which it gets no task. "next" if it gets the next one."""
    sentence: str = Field(max_length=500)
    """The same as a sentence about the node, with the number that decides."""
    silent_seconds: float | None = Field(ge=0, allow_inf_nan=False)
    """Seconds since it was heard. None if it was never heard."""
    leases: UInt64
    """Number of leases that it holds."""
    max_leases: UInt64
    """Number of leases that it may hold at once. It grows with its accepted submissions."""
    cooldown_seconds: float = Field(ge=0, allow_inf_nan=False)
    """Seconds for which it gets no task."""
    dropped: UInt64
    """Number of leases that it dropped."""
    strikes: UInt64
    """Strikes of its contributor."""
    pardons: UInt64
    """Number of times that the operator took back all strikes of its contributor."""
    sum_above_limit: str = Field(max_length=16)
    """Statistic whose running sum is above its limit, so that the node's work is replayed whole. Empty: none."""
    summed_submissions: UInt64
    """Number of accepted submissions in the running sums."""
    sums: dict[StatisticName, SumView]
    """Running sums by the name of the statistic in the pool's thresholds. Empty if too few validators stated any."""


class HealthView(Body):
    """Sign of life of a coordinator."""

    pool: PoolId


class ReadinessView(Body):
    """Whether a coordinator can serve requests. Example: is_ready=True, reasons=()."""

    is_ready: bool
    reasons: tuple[str, ...]
    """Sentences that say what keeps it from serving."""


class PauseView(Body):
    """Why no new tasks are assigned. Example: since=1760000000, reason="the trainer has paused it: ..."."""

    since: UInt64
    """Unix seconds at which the pause began."""
    reason: str = Field(max_length=1000)
    """Part of a sentence that follows "the pool is paused"."""


class StatusView(Body):
    """Summary of a pool's state."""

    pool: PoolId
    time: UInt64
    """Time of the coordinator's clock in Unix seconds. The times in signed requests are compared with it."""
    block: UInt64
    ended: bool
    settled: bool
    """Whether the pool has ended and every countersigned receipt is in a posted epoch."""
    step: int = Field(ge=-1, lt=1 << 63)
    """Newest step whose policy is on chain. -1 if there is none."""
    steps: tuple[StepView, ...]
    tasks: dict[str, UInt64]
    submissions: dict[str, UInt64]
    reasons: dict[str, UInt64]
    nodes: dict[AddressText, NodeView]
    """Registered nodes, by address."""
    validators: dict[str, ValidatorView]
    """The pool's validators, and former ones that have judged, by address."""
    execution_contracts: dict[HashText, UInt64] = Field(default_factory=dict)
    """Number of validators that serve each execution contract of the pool, by digest: bonded ones that ask for turns
    and answer those of the contract. Work under a contract with fewer of them than the pool's quorum is not accepted.
    """
    epochs: tuple[EpochView, ...]
    signs: tuple[LearningSign, ...] = ()
    """Signs that the run cannot learn, as the trainer reported them after the newest step."""
    pause: PauseView | None = None
    """None if tasks are assigned."""
