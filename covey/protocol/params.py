"""Parameters of a pool: fixed at creation, published on chain with their hash, and the same for every party.

Amounts, time windows and the quorum that the contracts enforce are in the contract's terms. Everything else
is here.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from eth_utils.crypto import keccak
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from covey.errors import ProtocolError
from covey.protocol import canonical
from covey.protocol.api.common import HashText
from covey.protocol.execution_contract import MAX_CONTRACTS, ExecutionContract, list_digests
from covey.protocol.hardware_needs import HardwareNeeds
from covey.protocol.ids import Hash, hash_from_bytes
from covey.protocol.seeding import MAX_AUDIT_ROWS, draw_rows
from covey.protocol.submission_file.rows import Budget
from covey.protocol.thresholds import Thresholds

Count = Annotated[int, Field(gt=0, le=1 << 31)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
EngineName = Literal["any", "hf", "vllm"]
Hardware = Annotated[str, Field(pattern=r"^[ -~]+$", max_length=64)]
PARAMS_VERSION = 5
MAX_PARAMS_BYTES = 16_384
MAX_DECODED_BYTES = 256 << 20
"""Maximum output in bytes of a process that decodes a file. The decoded rows of an honest file take less than
twice the size of the file.
"""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EnvironmentParams(_Part):
    """Source of prompts and rewards. Example: kind="reasoning_gym", options={"name": "spell_backward"}."""

    kind: str = Field(max_length=64)
    """Kind of the environment, for example "reasoning_gym"."""
    options: dict[str, JsonValue] = Field(default_factory=dict, max_length=32)
    """Options of the environment, as its kind defines them."""
    fingerprint: HashText | None = None
    """Hash of `versions` and of prompts that the pool's creator drew. Every party compares it with the hash of its
    own environment. None: it is not checked. `covey pool create` sets it.
    """
    versions: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=64)]] = Field(
        default_factory=dict, max_length=64
    )
    """Versions of the interpreter and of the packages that prompts and rewards depend on, by name. They must be
    the same for every party. `covey pool create` sets them.
    """


class ModelParams(_Part):
    """Token limits, number format and prompt format of the model. The weights are published as policies."""

    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format in which worker and validator compute. bfloat16 requires calibrated thresholds."""
    max_prompt_tokens: Count = 512
    """Maximum number of tokens of a prompt."""
    max_completion_tokens: Count = 8
    """Maximum number of tokens of a completion."""
    temperature: float = Field(default=1.0, ge=0.01, le=10, allow_inf_nan=False)
    """Sampling temperature of rollouts."""
    prompt_format: Literal["raw", "chat"] = "raw"
    """How a prompt is formatted. "raw": its text and a newline. "chat": with the tokenizer's chat template."""
    chat_template_hash: HashText | None = None
    """SHA-256 of the chat template, which must be the same in every policy. `covey pool create --model` sets it."""
    chat_template_kwargs: dict[Annotated[str, Field(max_length=64)], JsonValue] = Field(
        default_factory=dict, max_length=16
    )
    """Arguments of the chat template, for example {"enable_thinking": false}."""
    end_tokens: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(), max_length=16)
    """Ids of the tokens that end a completion, in ascending order. They must be the same in every policy. Empty:
    each policy has its own. `covey pool create --model` sets them.
    """

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a prompt and its completion together."""
        return self.max_prompt_tokens + self.max_completion_tokens


class GradingParams(_Part):
    """Limits on grading one reply. An answer that reaches a limit gets the grade of a wrong answer."""

    cpu_seconds: float = Field(default=10.0, ge=0.1, le=3600)
    """Maximum CPU time in seconds for grading one reply on a worker. A validator allows four times as much, so
    that a slower machine does not change a verdict.
    """
    memory_bytes: int = Field(default=512 << 20, ge=64 << 20, le=64 << 30)
    """Memory limit in bytes of each process that grades a reply."""
    processes: int = Field(default=16, ge=1, le=1024)
    """Maximum number of processes and threads for grading one reply."""


class VerificationParams(_Part):
    """Rules for comparing a submission with its replay, and the shares of submissions that are audited."""

    mode: Literal["calibrated", "exact"] = "calibrated"
    """Lanes of the pool. "calibrated": differences up to the thresholds are accepted, except from engines with one of
    the `contracts`, which work in the exact lane. "exact": there is only the exact lane. In the exact lane any
    difference that a second replay confirms counts as cheating, except a rare single fault.
    """
    contracts: tuple[ExecutionContract, ...] = Field(default=(), max_length=MAX_CONTRACTS)
    """Execution contracts of the exact lane, one for each kind of card. A submission under a contract is judged only
    by validators with the same one. Empty: there is no exact lane. `covey validator calibrate` proposes them.
    """
    worker_engine: EngineName = "any"
    """Worker's engine for which the thresholds are valid. "any": every engine, in float32."""
    validator_engine: EngineName = "any"
    """Validator's engine for which the thresholds are valid. "any": every engine, in float32."""
    hardware: Hardware = "any"
    """Required hardware of workers and validators: "cpu", or the accelerator's name as torch reports it ("NVIDIA
    H100 80GB HBM3"). "any": all hardware, in float32. In the exact mode the contracts name the hardware.
    """
    thresholds: Thresholds = Thresholds()
    """Maximum differences between an honest submission and its replay."""
    proof_window: int = Field(default=32, ge=1, le=4096)
    """Number of tokens in one proof window. The last window of a completion may be shorter."""
    proof_top_k: int = Field(default=128, ge=1, le=1024)
    """Number of values of the last hidden states, the largest ones, that one proof commits to."""
    audit_rate: float = Field(default=0.1, ge=0, le=1)
    """Share of submissions that a quorum replays whole. It increases with the contributor's strikes."""
    audit_rows: int = Field(default=3, ge=0, le=MAX_AUDIT_ROWS)
    """Number of rollouts, drawn from each submission that is not replayed whole, that one validator replays. 0: it
    replays none, and such a submission gets only the cheap checks.
    """
    newcomer_submissions: int = Field(default=8, ge=0)
    """Number of accepted submissions that a node needs before its submissions are audited at random. Until then,
    all of them are replayed.
    """
    confirm_rate: float = Field(default=0.1, ge=0, le=1)
    """Share of the submissions that are not replayed whole for which a second validator repeats the cheap checks and
    the replay of the drawn rollouts.
    """
    draw_seconds: int = Field(default=24, ge=1, le=86_400)
    """Seconds from a countersignature to its draw. The first block after that time decides which validators judge
    and whether the submission is replayed. It must exceed the time until a block is final and visible on all of
    the chain's nodes.
    """

    @model_validator(mode="after")
    def _require_pair(self) -> Self:
        if self.mode == "exact" and (self.worker_engine == "any" or self.worker_engine != self.validator_engine):
            raise ValueError('mode is exact, but worker_engine and validator_engine are different or "any"')
        if self.mode == "exact" and not self.contracts:
            raise ValueError("mode is exact, but there are no contracts")
        if self.mode == "exact" and self.hardware != "any":
            raise ValueError("mode is exact, but hardware is set, which only the contracts may name")
        return self

    @model_validator(mode="after")
    def _require_fitting_contracts(self) -> Self:
        engines = {self.worker_engine, self.validator_engine}
        if any(not engines <= {"any", contract.engine} for contract in self.contracts):
            raise ValueError("a contract's engine is not that of workers and validators")
        if len(self.list_digests()) < len(self.contracts):
            raise ValueError("contracts has the same contract twice")
        return self

    def list_digests(self) -> Mapping[Hash, ExecutionContract]:
        """Return the contracts by their digests."""
        return list_digests(self.contracts)

    def list_models(self) -> tuple[str, ...]:
        """Return the names of the accelerators of which a worker must have one. Empty: a CPU suffices, or any."""
        if self.mode == "calibrated":
            return () if self.hardware in ("any", "cpu") else (self.hardware,)
        names = [contract.architecture.rpartition(", sm_")[0] for contract in self.contracts]
        return tuple(names) if all(names) else ()  # the name of a CPU has no compute capability


class TrainingParams(_Part):
    """Parameters that determine the rollouts and batches of a run. A pool and a run on one machine share them."""

    environment: EnvironmentParams
    """Environment that supplies prompts and rewards."""
    model: ModelParams = ModelParams()
    """Token limits, number format and prompt format of the model."""
    grading: GradingParams = GradingParams()
    """Limits on grading one reply."""
    group_size: int = Field(default=8, ge=2, le=1024)
    """Number of rollouts (siblings) in a group. They share one prompt, and their rewards are compared with each
    other.
    """
    groups_per_step: Count = 16
    """Number of groups in the batch of one step. It is a multiple of `groups_per_task`."""
    groups_per_task: int = Field(default=2, ge=1, le=1024)
    """Number of groups that one task requests."""
    max_staleness: int = Field(default=1, ge=0, le=64)
    """Maximum staleness, in steps, of the rollouts that a step trains on."""
    online_filter: bool = False
    """Whether a step's batch must contain `groups_per_step` live groups, that is, groups whose rewards are not all
    equal (INTELLECT-2, section 3.3.2). Otherwise every accepted group counts.
    """
    max_sampling: float = Field(default=4.0, ge=1, le=64)
    """Maximum size of a batch with the online filter, as a multiple of `groups_per_step`. It limits the cost of
    questions that are too hard or too easy.
    """

    @model_validator(mode="after")
    def _require_whole_tasks(self) -> Self:
        if self.groups_per_step % self.groups_per_task:
            raise ValueError("groups_per_step is not a multiple of groups_per_task")
        return self

    @property
    def max_groups_per_step(self) -> int:
        """Maximum number of groups in one batch, rounded down to whole tasks.

        Example: 16 groups per step, a `max_sampling` of 2.6 and 2 groups per task give 40.
        """
        if not self.online_filter:
            return self.groups_per_step
        return int(self.max_sampling * self.groups_per_step) // self.groups_per_task * self.groups_per_task

    @property
    def rollouts_per_task(self) -> int:
        """Number of rollouts that one task asks for."""
        return self.groups_per_task * self.group_size


class PoolParams(TrainingParams):
    """All of a pool's parameters. Example: `PoolParams(environment=..., model=...)`."""

    version: Literal[5] = 5
    """Version of this format."""
    name: str = Field(min_length=1, max_length=64)
    """Human-readable name of the pool."""
    verification: VerificationParams = VerificationParams()
    """Rules for replaying submissions and comparing the results."""
    quorum: int = Field(default=2, ge=1, le=64)
    """Number of validators that must agree on a verdict."""
    lease_seconds: Seconds = 30
    """Seconds after which a lease expires, from the time its node collects it. The task is then requeued for
    another node.
    """
    cooldown_seconds: Seconds = 5
    """Seconds during which a node gets no lease after it drops one. Several cooldowns add up."""
    turn_seconds: Seconds = 5
    """Seconds after which a turn that nobody has taken is opened to one more validator, in the drawn order."""
    judgement_seconds: Seconds = 30
    """Seconds in which a validator must finish a judgement after taking its turn. After that, another validator is
    asked.
    """
    receipt_seconds: Seconds = 86_400
    """Seconds for which a worker's signed receipt is valid."""
    epoch_seconds: Seconds = 20
    """Seconds between two epochs while there are submissions to settle. The contract's term `epoch_length` is a
    lower bound.
    """
    epoch_leaves: Count = 4096
    """Number of unsettled submissions at which an epoch is closed before `epoch_seconds` have passed."""
    strikes_to_suspend: Count = 8
    """Number of strikes at which all nodes of a contributor are suspended. The strikes of all its nodes count
    together.
    """
    accepted_per_strike: Count = 6
    """Number of accepted submissions that take back one strike of their contributor. Those of all its nodes count
    together. The strikes of a suspended contributor stay.
    """
    max_steps: int | None = Field(default=None, ge=1, le=1 << 31)
    """Number of steps that the pool trains. Tasks that could only be used in later steps are not planned. None: no
    limit.
    """
    max_submission_bytes: int = Field(default=4 << 20, ge=1024, le=1 << 30)
    """Maximum size of one submission's file in bytes. It must be large enough for every honest submission."""
    needs: HardwareNeeds = Field(default=HardwareNeeds(), exclude_if=lambda needs: needs == HardwareNeeds())
    """Hardware that a worker's machine should have. It is advice for contributors."""

    @model_validator(mode="after")
    def _require_calibration(self) -> Self:
        rules = self.verification
        is_calibrated = "any" not in (rules.worker_engine, rules.validator_engine, rules.hardware)
        if any(contract.dtype != self.model.compute_dtype for contract in rules.contracts):
            raise ValueError(f"compute_dtype is {self.model.compute_dtype}, but a contract has another dtype")
        if self.model.compute_dtype != "float32" and rules.mode == "calibrated" and not is_calibrated:
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
        """Maximum number of judgements of one submission: twice the quorum. If they do not decide it, it is void."""
        return 2 * self.quorum

    @property
    def max_task_units(self) -> int:
        """Maximum number of work units of a submission: groups x group size x maximum completion tokens."""
        return self.rollouts_per_task * self.model.max_completion_tokens

    @property
    def proof_bytes(self) -> int:
        """Maximum size in bytes of the proof of one window: a modulus and `proof_top_k` coefficients of two bytes."""
        return 2 + 2 * self.verification.proof_top_k

    @property
    def needed_submission_bytes(self) -> int:
        """Upper bound in bytes on the file of an honest submission, assuming that nothing in it can be compressed.

        Prompt tokens, completion tokens and log-probabilities take 4 bytes each, and a proof takes 4 bytes more than
        its own size. Each of these list values takes one more byte for Parquet's levels. The other columns of a row
        take 32 bytes, and the footer takes 8 KiB. One part in 64 is added for page headers and the overhead of zstd.
        """
        proofs = -(-self.model.max_completion_tokens // self.verification.proof_window)
        row = 32 + 5 * self.model.max_prompt_tokens + 10 * self.model.max_completion_tokens
        size = self.rollouts_per_task * (row + proofs * (self.proof_bytes + 5))
        return 8192 + size + size // 64

    def build_budget(self) -> Budget:
        """Return the limits that the file of a submission must respect."""
        return Budget(
            file_bytes=self.max_submission_bytes,
            rows=self.rollouts_per_task,
            prompt_tokens=self.model.max_prompt_tokens,
            completion_tokens=self.model.max_completion_tokens,
            proof_bytes=self.proof_bytes,
            proof_window=self.verification.proof_window,
        )

    def draw_rows(self, receipt_hash: Hash, block_hash: Hash) -> tuple[int, ...]:
        """Return the rows of a submission, from 0, that its drawing block has replayed in any case, in drawn order."""
        count = self.verification.audit_rows
        return draw_rows(receipt_hash, block_hash, count=count, rows=self.rollouts_per_task)

    def to_text(self) -> str:
        """Return the parameters as canonical JSON, in the form that is published on chain."""
        return canonical.to_bytes(self.model_dump(mode="json")).decode()

    def compute_hash(self) -> Hash:
        """Return the keccak256 of the canonical JSON, as PoolRegistry computes it."""
        return hash_from_bytes(keccak(self.to_text().encode()))

    @classmethod
    def from_text(cls, text: str, expected_hash: Hash) -> Self:
        """Parse the canonical JSON that a chain event contains.

        Raises ProtocolError("bad_params") if the hash or the content is wrong, and ProtocolError("old_pool") if the
        pool was created with a different version of the format.
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
