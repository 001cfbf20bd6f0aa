"""Bodies of the coordinator's public routes: what anybody may read of a pool, without a signature.

Hashes, states and sums; a completion is readable when its epoch is closed.  Whoever stakes checks all of it against the
chain.
"""

from pydantic import Field

from covey.protocol.api.common import AddressText, Body, HashText, ReceiptBody, SignatureText, UInt64, VerdictBody, Word
from covey.protocol.ids import PoolId, Step, TaskId


class Requirements(Body):
    """What a worker's machine must have; read from the parameters, for people."""

    engine: str
    """Engine that the thresholds were calibrated for; "any" in float32."""
    compute_dtype: str
    hardware: str
    """Class of accelerator, as torch names it; "any" or "cpu"."""
    build: str
    """Versions of the engine's libraries; "any" outside the exact mode."""
    max_tokens: int
    """Longest sequence, a prompt with its completion."""


class PoolView(Body):
    """What a newcomer needs to know, without a signature.  Whoever stakes checks all of it against the chain."""

    pool: PoolId
    params: str
    """Canonical JSON of `PoolParams`."""
    params_hash: HashText
    """keccak256 of `params`, which the chain holds."""
    terms: dict[str, AddressText | HashText | bool | int]
    """The contract's terms by their names in `PoolTerms`; amounts in the token's smallest unit."""
    requirements: Requirements
    operator: AddressText
    chain_id: int
    contracts: dict[str, AddressText]
    token: AddressText
    start_block: UInt64
    """Block of the deployment: no event of the contracts is older."""
    relays: tuple[str, ...]
    """Base URLs of relays that the operator knows."""


class RewardView(Body):
    """What a contributor has earned by the end of `epoch`, with the proof for EpochLedger.claim."""

    epoch: UInt64
    contributor: AddressText
    cumulative: int = Field(ge=0, lt=1 << 256)
    proof: tuple[HashText, ...] = Field(max_length=64)


class EpochView(Body):
    """The fields of the header and, once it is posted, of the record (EpochLedger)."""

    epoch: UInt64
    work_root: HashText
    reward_root: HashText
    leaf_count: int
    units: int
    data_hash: HashText
    """SHA-256 of the epoch's file, which holds its leaves and rewards."""
    previous_hash: HashText
    posted: bool
    disabled: bool
    header_hash: HashText | None
    final_at: int | None
    reward: int | None
    cumulative: int | None


class StepView(Body):
    step: Step
    state: str
    manifest_hash: HashText | None
    """None while its policy is not on chain: the trainer learns ahead of it."""
    groups_accepted: int
    """Sampled by this step's policy."""
    groups_sampled: int
    """In this step's batch; while it is open, of accepted work that waits for a batch and is fresh enough."""
    groups_live: int
    """Those of them that carry a gradient, as validators counted."""
    is_capped: bool
    """Whether the online filter gave up: as many groups as it may sample, and too few of them live."""


class SubmissionView(Body):
    """A submission without its content: until its epoch closes, completions are private."""

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
    """Hash of receipt hash, salt and kind (`covey.protocol.canaries`), shown from the countersignature on."""
    salt: HashText | None
    """This and the next: None until the submission is decided."""
    kind: int | None
    """A `CanaryKind`: 0 ordinary, 1 a canary to be rejected, 2 one to be accepted."""
    evidence_hashes: tuple[HashText, ...] = Field(max_length=256)
    """Evidence hashes of all verdicts; empty until the submission is decided.  `covey validator audit` judges each
    again."""


class SubmissionDetail(SubmissionView):
    """All that is public of one submission; the fields below are empty until it is decided."""

    receipt: ReceiptBody | None
    verdicts: tuple[VerdictBody, ...] = Field(max_length=256)
    signatures: tuple[SignatureText, ...] = Field(max_length=256)
    """The validators', in the order of `verdicts`."""


class ValidatorView(Body):
    """How a validator judges.  Example: judged=40, canaries=3, missed=0."""

    judged: UInt64
    """Verdicts on decided submissions."""
    canaries: UInt64
    """Those of them that said accept or reject of a replayed canary."""
    missed: UInt64
    """Those of them that said the wrong one."""
    lapsed: UInt64
    """Turns that it took and did not finish in time."""
    contradicted: UInt64
    """Verdicts that were the opposite of a quorum's."""


class NodeView(Body):
    """A node that has registered.  Example: suspended="", accepted=12."""

    contributor: AddressText
    suspended: str = Field(max_length=32)
    """Why it gets no more tasks, "removed" where only its contributor took it out; empty while it gets them."""
    accepted: UInt64
    """Its accepted submissions for this contributor, since one of the contributor's nodes was caught cheating last."""


class StatusView(Body):
    """The network at a glance."""

    pool: PoolId
    time: UInt64
    """Unix seconds of the coordinator's clock, which signed requests are compared with."""
    block: UInt64
    ended: bool
    settled: bool
    """The pool has ended and every countersigned receipt stands in a posted epoch."""
    step: int = Field(ge=-1, lt=1 << 63)
    """The newest whose policy is on chain; -1: none."""
    steps: tuple[StepView, ...]
    tasks: dict[str, UInt64]
    submissions: dict[str, UInt64]
    reasons: dict[str, UInt64]
    nodes: dict[AddressText, NodeView]
    """Those that have registered, by address."""
    validators: dict[str, ValidatorView]
    """Whoever has a verdict on a decided submission, by address."""
    epochs: tuple[EpochView, ...]
