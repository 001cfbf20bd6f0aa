"""The parameters of a pool: fixed at creation, published on chain with their hash, and the same for every party.

Amounts, windows and the quorum that contracts must know are in the contract's terms. Everything else is here.
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
MAX_DECODED_BYTES = 256 << 20
"""Largest answer in bytes of a process that decodes files. The decoded rows of an honest file take less than twice the
bytes of the file."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EnvironmentParams(_Part):
    """Source of prompts and rewards. Example: kind="reasoning_gym", options={"name": "spell_backward"}."""

    kind: str = Field(max_length=64)
    """Name of the environment's adapter, for example "reasoning_gym"."""
    options: dict[str, JsonValue] = Field(default_factory=dict, max_length=32)
    """Options of the environment, as its adapter defines them."""
    fingerprint: HashText | None = None
    """Hash of prompts that the pool's creator drew and of `versions`. Every party compares it with the hash of its own
    environment. None: it is not checked. `covey pool create` fills it in."""
    versions: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=64)]] = Field(
        default_factory=dict, max_length=64
    )
    """Versions of the interpreter and of the packages that prompts and rewards depend on, by name. Every party must
    have the same. `covey pool create` fills them in."""


class ModelParams(_Part):
    """Limits, number format and prompt format of the model. The weights themselves are the published policies."""

    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format that worker and validator compute in. bfloat16 requires calibrated thresholds."""
    max_prompt_tokens: Count = 512
    """Largest number of tokens of a prompt."""
    max_completion_tokens: Count = 8
    """Largest number of tokens of a completion."""
    temperature: float = Field(default=1.0, ge=0.01, le=10, allow_inf_nan=False)
    """Sampling temperature of rollouts."""
    prompt_format: Literal["raw", "chat"] = "raw"
    """Form of a prompt. "raw": its text and a newline. "chat": the chat template of the tokenizer."""
    chat_template_hash: HashText | None = None
    """SHA-256 of the chat template, which every policy must have. `covey pool create --model` fills it in."""
    chat_template_kwargs: dict[Annotated[str, Field(max_length=64)], JsonValue] = Field(
        default_factory=dict, max_length=16
    )
    """Arguments of the chat template, for example {"enable_thinking": false}."""
    end_tokens: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(), max_length=16)
    """Ids of the tokens that end a completion, in ascending order. Every policy must have the same ones. Empty: each
    policy has its own. `covey pool create --model` fills them in."""

    @property
    def longest(self) -> int:
        """Largest number of tokens of a prompt together with its completion."""
        return self.max_prompt_tokens + self.max_completion_tokens


class GradingParams(_Part):
    """Limits of one grade. An answer that reaches a limit gets the grade of a wrong answer."""

    cpu_seconds: float = Field(default=10.0, ge=0.1, le=3600)
    """CPU time of one grade on a worker, in seconds. A validator allows four times that, so that a slower machine does
    not change a verdict."""
    memory_bytes: int = Field(default=512 << 20, ge=64 << 20, le=64 << 30)
    """Memory limit of each process of a grade, in bytes."""
    processes: int = Field(default=16, ge=1, le=1024)
    """Largest number of processes and threads of a grade."""


class VerificationParams(_Part):
    """Rules for comparing claims with their replay, and shares of the work that is audited."""

    mode: Literal["calibrated", "exact"] = "calibrated"
    """Rule for comparing a claim with its replay. "calibrated": differences up to the thresholds are accepted. "exact":
    any difference voids the work, and one beyond the thresholds counts as a cheat. The exact mode requires engines
    whose results calibration found to be bitwise equal."""
    worker_engine: EngineName = "any"
    """Engine on the worker's side for which the thresholds hold. "any": every engine, in float32."""
    validator_engine: EngineName = "any"
    """Engine on the validator's side for which the thresholds hold. "any": every engine, in float32."""
    hardware: Hardware = "any"
    """Class of hardware on both sides: "cpu", or an accelerator's name as torch gives it ("NVIDIA H100 80GB HBM3"). In
    the exact mode, one processor ("AMD EPYC, AVX512") instead of "cpu". "any": all hardware, in float32."""
    build: Build = "any"
    """Versions of the engine's libraries on both sides, for example "torch 2.13.0+cpu, transformers 5.23.0". "any": all
    builds, in the calibrated mode."""
    thresholds: Thresholds = Thresholds()
    """Largest distances between honest work and its replay."""
    proof_window: int = Field(default=32, ge=1, le=4096)
    """Number of tokens in one proof window. The last window of a completion may be shorter."""
    proof_top_k: int = Field(default=128, ge=1, le=1024)
    """Number of largest values of the last hidden states that one proof commits to."""
    audit_rate: float = Field(default=0.1, ge=0, le=1)
    """Share of the submissions that validators replay. It grows with the strikes of the contributor."""
    newcomer_submissions: int = Field(default=8, ge=0)
    """Number of accepted submissions after which a node is no longer a newcomer. Until then, all its submissions are
    replayed."""
    confirm_rate: float = Field(default=0.1, ge=0, le=1)
    """Share of the submissions without a replay whose cheap checks a second validator repeats."""
    draw_seconds: int = Field(default=24, ge=1, le=86_400)
    """Seconds from a countersignature to its draw. The first block after that decides which validators judge and
    whether the work is replayed. It must exceed the time after which a block is final and all nodes of the chain show
    it."""

    @model_validator(mode="after")
    def _require_pair(self) -> Self:
        if self.mode == "exact" and (self.worker_engine == "any" or self.worker_engine != self.validator_engine):
            raise ValueError('mode is exact, but worker_engine and validator_engine are different or "any"')
        if self.mode == "exact" and "any" in (self.hardware, self.build):
            raise ValueError('mode is exact, but hardware or build is "any"')
        return self


class PoolParams(_Part):
    """All of a pool's parameters. Example: `PoolParams(environment=..., model=...)`."""

    version: Literal[3] = 3
    """Version of this format."""
    name: str = Field(min_length=1, max_length=64)
    """Human-readable name of the pool."""
    environment: EnvironmentParams
    """Environment that prompts and rewards come from."""
    model: ModelParams = ModelParams()
    """Limits and number format of the model."""
    grading: GradingParams = GradingParams()
    """Limits of one grade."""
    verification: VerificationParams = VerificationParams()
    """Rules for replaying and comparing work."""
    group_size: int = Field(default=8, ge=2, le=1024)
    """Number of rollouts (siblings) of one prompt, whose rewards are compared with each other."""
    groups_per_step: Count = 16
    """Number of groups in the batch of one step. It is a multiple of `groups_per_task`."""
    groups_per_task: int = Field(default=2, ge=1, le=1024)
    """Number of groups that one lease asks for."""
    max_staleness: int = Field(default=1, ge=0, le=64)
    """Largest number of steps by which a rollout's policy may be older than the policy that learns from it."""
    quorum: int = Field(default=2, ge=1, le=64)
    """Number of validators that must agree on a verdict."""
    lease_seconds: Seconds = 30
    """Seconds from the collection of a lease to its expiry, after which the task is requeued for another node."""
    cooldown_seconds: Seconds = 5
    """Seconds for which a node gets no lease after it dropped one. Cooldowns add up."""
    turn_seconds: Seconds = 5
    """Seconds after which a turn that the drawn validator has not taken is also open to the next one."""
    judgement_seconds: Seconds = 30
    """Seconds that a validator has for one judgement after taking its turn. Then another validator is asked."""
    receipt_seconds: Seconds = 86_400
    """Seconds for which a worker's signed receipt is valid."""
    epoch_seconds: Seconds = 20
    """Seconds between two epochs while there is work to settle. On chain, the term `epoch_length` is a lower bound."""
    epoch_leaves: Count = 4096
    """Number of waiting submissions at which an epoch is closed even before `epoch_seconds` have passed."""
    strikes_to_suspend: Count = 8
    """Number of strikes, over all nodes of a contributor, after which its nodes are suspended."""
    max_steps: int | None = Field(default=None, ge=1, le=1 << 31)
    """Number of steps that the pool trains. Tasks that a run of this length cannot train on are not planned. None: no
    limit."""
    online_filter: bool = False
    """Whether a step's batch must contain `groups_per_step` live groups, that is, groups whose rewards are not all
    equal (the paper, section 3.3.2). Otherwise every accepted group counts."""
    max_sampling: float = Field(default=4.0, ge=1, le=64)
    """Largest size of a batch with the online filter, in multiples of `groups_per_step`. It limits the cost of
    questions that are too hard or too easy."""
    max_submission_bytes: int = Field(default=4 << 20, ge=1024, le=1 << 30)
    """Largest size of one rollout file, in bytes. It must be large enough for any honest task."""

    @model_validator(mode="after")
    def _require_whole_tasks(self) -> Self:
        if self.groups_per_step % self.groups_per_task:
            raise ValueError("groups_per_step is not a multiple of groups_per_task")
        return self

    @model_validator(mode="after")
    def _require_calibration(self) -> Self:
        rules = self.verification
        is_calibrated = "any" not in (rules.worker_engine, rules.validator_engine, rules.hardware)
        if self.model.compute_dtype != "float32" and not is_calibrated:
            raise ValueError(
                "compute_dtype is not float32, but the thresholds are not calibrated: run covey validator calibrate"
            )
        return self

    @model_validator(mode="after")
    def _require_room(self) -> Self:
        needed = self.needed_submission_bytes
        if self.max_submission_bytes < needed:
            raise ValueError(f"max_submission_bytes is less than {needed}, which an honest task may need")
        if 2 * needed > MAX_DECODED_BYTES:
            raise ValueError("a task is too large to be decoded: lower groups_per_task, group_size or the token limits")
        return self

    @property
    def max_judgements(self) -> int:
        """Number of judgements of one submission after which it is void: twice the quorum."""
        return 2 * self.quorum

    @property
    def max_groups_per_step(self) -> int:
        """Largest number of groups in one batch, in whole tasks.

        Example: 16 groups per step, a factor of 2.6 and tasks of 2 groups give 40.
        """
        if not self.online_filter:
            return self.groups_per_step
        return int(self.max_sampling * self.groups_per_step) // self.groups_per_task * self.groups_per_task

    @property
    def rollouts_per_task(self) -> int:
        """Number of rollouts that one task asks for."""
        return self.groups_per_task * self.group_size

    @property
    def max_task_units(self) -> int:
        """Largest number of units of a submission: groups x group size x maximum completion tokens."""
        return self.rollouts_per_task * self.model.max_completion_tokens

    @property
    def proof_bytes(self) -> int:
        """Size in bytes of the largest proof of one window: the modulus and `proof_top_k` coefficients, two bytes
        each."""
        return 2 + 2 * self.verification.proof_top_k

    @property
    def needed_submission_bytes(self) -> int:
        """Upper bound in bytes of the file of an honest task, if nothing in it can be compressed.

        Prompt tokens, completion tokens and log-probabilities take 4 bytes each, and a proof takes 4 more than its own
        size. Each of these list values takes one more byte for Parquet's levels. The other columns of a row take 32
        bytes, and the footer takes 8 KiB. One part in 64 is added for page headers and the overhead of zstd.
        """
        proofs = -(-self.model.max_completion_tokens // self.verification.proof_window)
        row = 32 + 5 * self.model.max_prompt_tokens + 10 * self.model.max_completion_tokens
        size = self.rollouts_per_task * (row + proofs * (self.proof_bytes + 5))
        return 8192 + size + size // 64

    def build_budget(self) -> Budget:
        """Return the limits that the file of a task must keep to."""
        return Budget(
            file_bytes=self.max_submission_bytes,
            rows=self.rollouts_per_task,
            prompt_tokens=self.model.max_prompt_tokens,
            completion_tokens=self.model.max_completion_tokens,
            proof_bytes=self.proof_bytes,
            proof_window=self.verification.proof_window,
        )

    def to_text(self) -> str:
        """Return the canonical JSON that is published on chain."""
        return canonical.to_bytes(self.model_dump(mode="json")).decode()

    def compute_hash(self) -> Hash:
        """Return the keccak256 of the text, as PoolRegistry computes it."""
        return hash_from_bytes(keccak(self.to_text().encode()))

    @classmethod
    def from_text(cls, text: str, expected_hash: Hash) -> Self:
        """Parse the text of the chain's event.

        Raises ProtocolError("bad_params") if the hash or the content is wrong, and ProtocolError("old_pool") if the
        pool was created for another version of the protocol.
        """
        if len(text.encode()) > MAX_PARAMS_BYTES:
            raise ProtocolError("bad_params", f"the pool's parameters exceed {MAX_PARAMS_BYTES} bytes")
        if hash_from_bytes(keccak(text.encode())) != expected_hash:
            raise ProtocolError("bad_params", "the pool's parameters do not have the hash that is on chain")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            if any(detail["loc"] == ("version",) for detail in error.errors()):
                message = (
                    "the pool's parameters were written by a different version of Covey, which does "
                    f"not use format {PARAMS_VERSION}"
                )
                raise ProtocolError("old_pool", f"{message}; create a new pool with covey pool create") from error
            raise ProtocolError("bad_params", f"the pool's parameters are invalid: {error}") from error
