"""Bodies of the coordinator's public routes, which anyone may read without a signature.

They contain hashes, states and sums. A completion can be read once its epoch is closed. A party with a stake checks all
of it against the chain.
"""

from pydantic import Field

from covey.protocol.api.common import AddressText, Body, HashText, ReceiptBody, SignatureText, UInt64, VerdictBody, Word
from covey.protocol.ids import PoolId, Step, TaskId


class Requirements(Body):
    """Requirements of a worker's machine, as people read them. They follow from the pool's parameters."""

    engine: str
    """Engine that the thresholds were calibrated for. "any" in float32."""
    compute_dtype: str
    """Number format that the engine computes in."""
    hardware: str
    """Class of accelerator as torch names it, "cpu" or "any"."""
    build: str
    """Versions of the engine's libraries. "any" outside the exact mode."""
    max_tokens: int
    """Largest number of tokens of a prompt together with its completion."""


class PoolView(Body):
    """Everything that a newcomer needs to know about a pool. A party with a stake checks it against the chain."""

    pool: PoolId
    params: str
    """Canonical JSON of `PoolParams`."""
    params_hash: HashText
    """keccak256 of `params`, which the chain holds."""
    terms: dict[str, AddressText | HashText | bool | int]
    """The contract's terms by their names in `PoolTerms`. Amounts are in the token's smallest unit."""
    requirements: Requirements
    operator: AddressText
    chain_id: int
    contracts: dict[str, AddressText]
    token: AddressText
    start_block: UInt64
    """Block of the deployment, before which the contracts emitted no events."""
    relays: tuple[str, ...]
    """Base URLs of relays that the operator knows."""


class RewardView(Body):
    """The amount that a contributor has earned by the end of `epoch`, with the proof for EpochLedger.claim."""

    epoch: UInt64
    contributor: AddressText
    cumulative: int = Field(ge=0, lt=1 << 256)
    proof: tuple[HashText, ...] = Field(max_length=64)


class EpochView(Body):
    """An epoch: the fields of its header and, once it is posted, of its record (EpochLedger)."""

    epoch: UInt64
    work_root: HashText
    reward_root: HashText
    leaf_count: int
    units: int
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
    manifest_hash: HashText | None
    """Manifest hash of the step's policy. None while the policy is not on chain, because the trainer learns ahead of
    the chain."""
    groups_accepted: int
    """Number of accepted groups that were sampled by this step's policy."""
    groups_sampled: int
    """Number of groups in this step's batch. While the step is open, the accepted groups that wait for a batch and are
    fresh enough."""
    groups_live: int
    """Number of the groups in `groups_sampled` that carry a gradient, as validators counted."""
    is_capped: bool
    """Whether the online filter stopped at the cap: the batch has as many groups as it may sample, and too few of them
    are live."""


class SubmissionView(Body):
    """A submission without its content, because completions are private until their epoch closes."""

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
    """Kind as a `CanaryKind`: 0 ordinary, 1 a canary to be rejected, 2 one to be accepted. None until the submission is
    decided."""
    evidence_hashes: tuple[HashText, ...] = Field(max_length=256)
    """Evidence hashes of all verdicts. Empty until the submission is decided. `covey validator audit` repeats the
    judgement of each."""


class SubmissionDetail(SubmissionView):
    """Everything that is public about one submission. The fields below are empty until it is decided."""

    receipt: ReceiptBody | None
    verdicts: tuple[VerdictBody, ...] = Field(max_length=256)
    signatures: tuple[SignatureText, ...] = Field(max_length=256)
    """The validators' signatures, in the order of `verdicts`."""


class ValidatorView(Body):
    """Statistics of a validator's judgements. Example: judged=40, canaries=3, missed=0."""

    judged: UInt64
    """Number of verdicts on decided submissions."""
    canaries: UInt64
    """Number of the verdicts in `judged` that accepted or rejected a replayed canary."""
    missed: UInt64
    """Number of the verdicts in `canaries` that were wrong."""
    lapsed: UInt64
    """Number of turns that the validator took and did not finish in time."""
    contradicted: UInt64
    """Number of verdicts that were the opposite of a quorum's."""


class NodeView(Body):
    """A node that has registered. Example: suspended="", accepted=12."""

    contributor: AddressText
    suspended: str = Field(max_length=32)
    """Reason why the node gets no more tasks. "removed" if only its contributor removed it. Empty while it gets
    tasks."""
    accepted: UInt64
    """Number of the node's accepted submissions for this contributor since one of the contributor's nodes was last
    caught cheating."""


class StatusView(Body):
    """Overview of a pool."""

    pool: PoolId
    time: UInt64
    """Time of the coordinator's clock in Unix seconds, with which signed requests are compared."""
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
    """Validators with a verdict on a decided submission, by address."""
    epochs: tuple[EpochView, ...]
