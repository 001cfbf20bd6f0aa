"""The parameters of a pool: fixed at creation, published on chain with their hash, the same for every party.

Money, windows and quorum that contracts must see stand in the contract's terms; everything else stands here.
"""

from typing import Annotated, Literal, Self

from eth_utils.crypto import keccak
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from covey.errors import ProtocolError
from covey.protocol import canonical
from covey.protocol.api.common import HashText
from covey.protocol.ids import Hash, hash_from_bytes
from covey.protocol.submission_file.rows import Budget
from covey.protocol.thresholds import Thresholds

Count = Annotated[int, Field(gt=0, le=1 << 31)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
EngineName = Literal["any", "hf", "vllm"]
Hardware = Annotated[str, Field(pattern=r"^[ -~]+$", max_length=64)]
Build = Annotated[str, Field(pattern=r"^[ -~]+$", max_length=128)]
PARAMS_VERSION = 3
MAX_PARAMS_BYTES = 16_384
MAX_ANSWER_BYTES = 256 << 20
"""What a process that decodes files may answer; rows as text take less than twice an honest file's bytes."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EnvironmentParams(_Part):
    """Which prompts and which reward.  Example: kind="reasoning_gym", options={"name": "spell_backward"}."""

    kind: str = Field(max_length=64)
    """Name of the environment's adapter, for example "reasoning_gym"."""
    options: dict[str, JsonValue] = Field(default_factory=dict, max_length=32)
    """Options of the environment, as its adapter defines them."""
    fingerprint: HashText | None = None
    """Hash of prompts that the pool's creator drew, and of the versions below, by which every party checks that its
    own environment is the same. None: it is not checked; `covey pool create` fills it in."""
    versions: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=64)]] = Field(
        default_factory=dict, max_length=64
    )
    """Versions of the interpreter and of the packages that prompts and rewards depend on, by name. Every party must
    have the same. `covey pool create` fills them in."""


class ModelParams(_Part):
    """Limits and arithmetic of the model; the weights themselves are the published policies."""

    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format that worker and validator compute in. bfloat16 requires calibrated thresholds."""
    max_prompt_tokens: Count = 512
    """Largest number of tokens of a prompt."""
    max_completion_tokens: Count = 8
    """Largest number of tokens of a completion."""
    temperature: float = Field(default=1.0, ge=0.01, le=10, allow_inf_nan=False)
    """Sampling temperature of rollouts."""
    prompt_format: Literal["raw", "chat"] = "raw"
    """How a prompt is put to the model. raw: its text and a newline; chat: by the chat template of the tokenizer."""
    chat_template_hash: HashText | None = None
    """SHA-256 of the chat template, which every policy must have. `covey pool create --model` fills it in."""
    chat_template_kwargs: dict[Annotated[str, Field(max_length=64)], JsonValue] = Field(
        default_factory=dict, max_length=16
    )
    """Arguments of the chat template, for example {"enable_thinking": false}."""
    end_tokens: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(), max_length=16)
    """Ids of the tokens that end a completion, ascending; those of every policy must be the same. Empty: each policy
    has its own. `covey pool create --model` fills them in."""

    @property
    def longest(self) -> int:
        """Tokens of a prompt and its completion at most."""
        return self.max_prompt_tokens + self.max_completion_tokens


class GradingParams(_Part):
    """Limits of one grade.  A grade that they end is that of a wrong answer."""

    cpu_seconds: float = Field(default=10.0, ge=0.1, le=3600)
    """CPU time of one grade on a worker, in seconds. A validator allows four times as much, so that a slower machine
    costs nobody a verdict."""
    memory_bytes: int = Field(default=512 << 20, ge=64 << 20, le=64 << 30)
    """Memory of each process of a grade, in bytes."""
    processes: int = Field(default=16, ge=1, le=1024)
    """Largest number of processes and threads of a grade."""


class VerificationParams(_Part):
    """How claims are compared with their replay, and how much work is audited."""

    mode: Literal["calibrated", "exact"] = "calibrated"
    """How replays are compared. calibrated: by the thresholds; exact: any difference voids the work and one beyond
    the thresholds is a cheat, which requires engines whose results calibration found equal bit for bit."""
    worker_engine: EngineName = "any"
    """Engine that the thresholds hold for on the worker's side. any: every engine, in float32."""
    validator_engine: EngineName = "any"
    """Engine that the thresholds hold for on the validator's side. any: every engine, in float32."""
    hardware: Hardware = "any"
    """Class of hardware of both sides: "cpu", in the exact mode one processor ("AMD EPYC, AVX512"), or an
    accelerator's name as torch gives it ("NVIDIA H100 80GB HBM3"). any: all hardware, in float32."""
    build: Build = "any"
    """Versions of the engine's libraries on both sides, as in "torch 2.13.0+cpu, transformers 5.23.0". any: all
    builds, in the calibrated mode."""
    thresholds: Thresholds = Thresholds()
    """Largest distances between honest work and its replay."""
    proof_window: int = Field(default=32, ge=1, le=4096)
    """Tokens of one proof window; the last window of a completion may be shorter."""
    proof_top_k: int = Field(default=128, ge=1, le=1024)
    """Number of largest values of the last hidden states that one proof commits to."""
    audit_rate: float = Field(default=0.1, ge=0, le=1)
    """Part of the submissions that validators replay. It grows with the strikes of the contributor."""
    newcomer_submissions: int = Field(default=8, ge=0)
    """Accepted submissions until which every submission of a node is replayed."""
    confirm_rate: float = Field(default=0.1, ge=0, le=1)
    """Part of the submissions that are not replayed whose cheap checks a second validator repeats."""
    draw_seconds: int = Field(default=24, ge=1, le=86_400)
    """Seconds from a countersignature to its draw: the first block from then on decides who judges and whether the
    work is replayed. It must exceed the time after which a block is final and every node of the chain shows it."""

    @model_validator(mode="after")
    def _require_pair(self) -> Self:
        if self.mode == "exact" and (self.worker_engine == "any" or self.worker_engine != self.validator_engine):
            raise ValueError("the exact mode names one engine for worker and validator")
        if self.mode == "exact" and "any" in (self.hardware, self.build):
            raise ValueError("the exact mode names one class of hardware and one build")
        return self


class PoolParams(_Part):
    """All of a pool's parameters.  Example: `PoolParams(environment=..., model=...)`."""

    version: Literal[3] = 3
    """Version of this format."""
    name: str = Field(min_length=1, max_length=64)
    """Name of the pool for people."""
    environment: EnvironmentParams
    """Environment that prompts and rewards come from."""
    model: ModelParams = ModelParams()
    """Limits and number format of the model."""
    grading: GradingParams = GradingParams()
    """Limits of one grade."""
    verification: VerificationParams = VerificationParams()
    """How work is replayed and compared."""
    group_size: int = Field(default=8, ge=2, le=1024)
    """Rollouts (siblings) of one prompt, which are compared with each other."""
    groups_per_step: Count = 16
    """Groups of the batch of one step. It is a multiple of `groups_per_task`."""
    groups_per_task: int = Field(default=2, ge=1, le=1024)
    """Groups that one lease asks for."""
    max_staleness: int = Field(default=1, ge=0, le=64)
    """Steps by which the policy of a rollout may be older than the policy that learns from it."""
    quorum: int = Field(default=2, ge=1, le=64)
    """Validators that must agree on a verdict."""
    lease_seconds: Seconds = 30
    """Seconds from the collection of a lease to its expiry, after which the task is requeued for another node."""
    cooldown_seconds: Seconds = 5
    """Seconds for which a node gets no lease after it dropped one. Cooldowns add up."""
    turn_seconds: Seconds = 5
    """Seconds after which a turn that the drawn validator has not taken is open to the next one, too."""
    judgement_seconds: Seconds = 30
    """Seconds that a validator has for one judgement, from taking its turn, before another validator is asked."""
    receipt_seconds: Seconds = 86_400
    """Seconds for which a worker's signed receipt is valid."""
    epoch_seconds: Seconds = 20
    """Seconds between two epochs while there is work to settle. The term `epoch_length` is a lower bound on
    chain."""
    epoch_leaves: Count = 4096
    """Largest number of submissions that wait for an epoch; at this number it is closed before `epoch_seconds`."""
    strikes_to_suspend: Count = 8
    """Strikes, of all nodes of a contributor together, after which its nodes are suspended."""
    max_steps: int | None = Field(default=None, ge=1, le=1 << 31)
    """Steps that the pool trains. No task is planned that such a run cannot train on. None: no limit."""
    online_filter: bool = False
    """Whether a step's batch must hold `groups_per_step` live groups, whose rewards are not all equal (the paper,
    section 3.3.2). Otherwise every accepted group counts."""
    max_sampling: float = Field(default=4.0, ge=1, le=64)
    """Largest size of a batch with the online filter, in multiples of `groups_per_step`. It bounds the cost of
    questions that are too hard or too easy."""
    max_submission_bytes: int = Field(default=4 << 20, ge=1024, le=1 << 30)
    """Largest size in bytes of one rollout file. It holds any honest task."""

    @model_validator(mode="after")
    def _require_whole_tasks(self) -> Self:
        if self.groups_per_step % self.groups_per_task:
            raise ValueError("groups_per_step must be a multiple of groups_per_task")
        return self

    @model_validator(mode="after")
    def _require_calibration(self) -> Self:
        rules = self.verification
        is_calibrated = "any" not in (rules.worker_engine, rules.validator_engine, rules.hardware)
        if self.model.compute_dtype != "float32" and not is_calibrated:
            raise ValueError("bfloat16 wants calibrated thresholds: run covey validator calibrate")
        return self

    @model_validator(mode="after")
    def _require_room(self) -> Self:
        needed = self.needed_submission_bytes
        if self.max_submission_bytes < needed:
            raise ValueError(f"max_submission_bytes must be at least {needed}, which an honest task may need")
        if 2 * needed > MAX_ANSWER_BYTES:
            raise ValueError("a task is too large to be decoded: lower groups_per_task, group_size or the token limits")
        return self

    @property
    def max_judgements(self) -> int:
        """Judgements of one submission before it is void: twice the quorum."""
        return 2 * self.quorum

    @property
    def max_groups_per_step(self) -> int:
        """Groups that one batch is sampled from at most, in whole tasks: 16 groups a step and 2.6 times make 40."""
        if not self.online_filter:
            return self.groups_per_step
        return int(self.max_sampling * self.groups_per_step) // self.groups_per_task * self.groups_per_task

    @property
    def rollouts_per_task(self) -> int:
        return self.groups_per_task * self.group_size

    @property
    def max_task_units(self) -> int:
        """Cap of a submission's units: groups x group size x maximal tokens."""
        return self.rollouts_per_task * self.model.max_completion_tokens

    @property
    def proof_bytes(self) -> int:
        """Largest proof of one window: the modulus and `proof_top_k` coefficients, two bytes each."""
        return 2 + 2 * self.verification.proof_top_k

    @property
    def needed_submission_bytes(self) -> int:
        """Upper bound of the file of an honest task, should nothing in it compress.

        Plain values are 4 bytes a prompt token, 8 a completion token (with its log-probability), 4 more than a proof
        has; one more each for the levels of Parquet's lists.  32 for the other columns of a row, 8 KiB for the footer,
        and a part of 64 for page headers and what zstd adds.
        """
        proofs = -(-self.model.max_completion_tokens // self.verification.proof_window)
        row = 32 + 5 * self.model.max_prompt_tokens + 10 * self.model.max_completion_tokens
        size = self.rollouts_per_task * (row + proofs * (self.proof_bytes + 5))
        return 8192 + size + size // 64

    def build_budget(self) -> Budget:
        """What the file of a task may hold."""
        return Budget(
            file_bytes=self.max_submission_bytes,
            rows=self.rollouts_per_task,
            prompt_tokens=self.model.max_prompt_tokens,
            completion_tokens=self.model.max_completion_tokens,
            proof_bytes=self.proof_bytes,
            proof_window=self.verification.proof_window,
        )

    def to_text(self) -> str:
        """The canonical JSON that stands on chain."""
        return canonical.to_bytes(self.model_dump(mode="json")).decode()

    def compute_hash(self) -> Hash:
        """keccak256 of the text, as PoolRegistry computes it."""
        return hash_from_bytes(keccak(self.to_text().encode()))

    @classmethod
    def from_text(cls, text: str, expected_hash: Hash) -> Self:
        """Parse what the chain's event holds; raise ProtocolError "bad_params" when hash or content is wrong, and
        "old_pool" when the pool was created for another version of the protocol."""
        if len(text.encode()) > MAX_PARAMS_BYTES:
            raise ProtocolError("bad_params", f"parameters are over {MAX_PARAMS_BYTES} bytes")
        if hash_from_bytes(keccak(text.encode())) != expected_hash:
            raise ProtocolError("bad_params", "parameters do not have the hash that the chain holds")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            if any(part["loc"] == ("version",) for part in error.errors()):
                message = f"the pool's parameters are not of version {PARAMS_VERSION}: it was created by another Covey"
                raise ProtocolError("old_pool", f"{message}; create a new pool with covey pool create") from error
            raise ProtocolError("bad_params", f"parameters do not parse: {error}") from error
