"""The facts that `covey doctor --config` gathers about a role's machine, chain, coordinator and relays, and its rows.

`gathering` fills a `Snapshot`; `machine_checks` and `role_checks` judge it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from covey.chain.amounts import SMALLEST, TokenUnit, format_amount
from covey.chain.deployment import Deployment
from covey.chain.structs import PoolState, PoolTerms
from covey.cli.config import Role
from covey.errors import CoveyError, OperatorError
from covey.protocol.api.public import NodeView
from covey.protocol.execution_contract import ExecutionContract
from covey.protocol.ids import Address, Hash
from covey.protocol.params import PoolParams
from covey.protocol.policy_record import PolicyRecord
from covey.runtime.settings import RoleSettings
from covey.sandbox import Isolation, IsolationTrial

if TYPE_CHECKING:
    from coordinator.config import CoordinatorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why something could not be read, and how to fix it. Example: detail="node.key cannot be read"."""

    detail: str
    fix: str = ""

    @classmethod
    def of(cls, error: CoveyError) -> Self:
        """Convert an error.

        If it has no separate `fix`, everything after the first sentence of its message is the fix.
        """
        if isinstance(error, OperatorError):
            return cls(detail=error.message.removesuffix(f". {error.fix}"), fix=error.fix)
        detail, _, fix = error.message.partition(". ")
        return cls(detail=detail, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The device that runs the model. Example: name="NVIDIA H100 80GB HBM3", memory=85_000_000_000."""

    name: str
    memory: int
    """Total memory in bytes."""
    has_idle_gpu: bool = False
    """Whether the machine has an NVIDIA GPU but the settings select the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProbe:
    """The engine that the role will use, to which the pool's thresholds apply on this hardware.

    Example: name="hf", build="covey 0.1.0, torch 2.13.0+cpu, transformers 5.1.0".
    """

    name: str
    build: str
    """Installed libraries of the engine, with their versions."""
    contract: ExecutionContract | None = None
    """Execution contract under which it will work. None: it will work in the calibrated lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationFacts:
    """The isolation level in use, and the stronger ones that failed. Example: "landlock", if bubblewrap is missing."""

    isolation: Isolation
    failed: tuple[IsolationTrial, ...] = ()
    """Results of the stronger levels' trials, strongest first."""

    @property
    def detail(self) -> str:
        """One line about the levels.

        Example: "landlock (Landlock ABI 4, seccomp); does not shield processes; bwrap: not installed".
        """
        parts = [f"{self.isolation.level} ({self.isolation.version})"]
        if self.isolation.open_doors:
            parts.append(f"does not isolate from {', '.join(self.isolation.open_doors)}")
        if not self.isolation.has_own_root:
            parts += [f"{trial.level}: {trial.reason}" for trial in self.failed]
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """A folder that a role writes to."""

    free: int
    """Free bytes on its disk."""
    held: int
    """Total size in bytes of the files in the folder."""
    is_writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFacts:
    """State of the chain's node, and which contracts have code."""

    url: str
    chain_id: int
    head_time: int
    """Time of the newest block, in Unix seconds."""
    gas_price: int
    """Price that a transaction would offer now, in wei per gas."""
    codeless: tuple[str, ...]
    """Names of contracts that have no code at their address."""
    balance: int | None
    """Balance of the role's key in wei. None if the role has no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """The pool on chain, and the role's account in it."""

    state: PoolState
    terms: PoolTerms
    operator: Address
    is_validator: bool
    contributor: Address | None
    """Contributor that vouches for the role's key as a node. None if there is none."""
    nodes: tuple[Address, ...]
    """All nodes of that contributor, on any machine. Empty if there is no contributor."""
    unit: TokenUnit
    """Unit in which rows show amounts of the pool's token."""
    stake: int
    """Free stake of a worker's contributor, or the bond of a validator's or coordinator's key, in smallest units."""
    steps: int
    """Number of published policies."""
    newest_hash: Hash | None
    """Record hash of the newest policy. None if no policy is published."""

    def format_amount(self, amount: int) -> str:
        """Format an amount, for example as "1.5 CVT", or as "1500000000000000000" in the smallest unit."""
        return format_amount(amount, self.unit)

    def format_argument(self, amount: int) -> str:
        """Format an amount as an argument of `covey stake add`.

        Example: "1.5", or "1500000000000000000 --raw" in the smallest unit.
        """
        number = format_amount(amount, TokenUnit(self.unit.decimals, ""))
        return f"{number} --raw" if self.unit == SMALLEST else number


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorFacts:
    """What the coordinator reports about itself and its nodes."""

    pool: int
    params: PoolParams | Trouble
    """The pool's parameters. A `Trouble` if their hash differs from the hash on chain."""
    offset: float
    """Difference in seconds between this machine's clock and the coordinator's. Positive if this machine is ahead."""
    nodes: Mapping[Address, NodeView]
    """Nodes that have registered with the coordinator, by address."""
    relays: tuple[str, ...]
    execution_contracts: Mapping[Hash, int]
    """Number of present validators with each execution contract of the pool, by digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All facts that were gathered.

    A fact is None if the role does not need it, or if something that it depends on is missing.
    """

    role: Role
    settings: "RoleSettings | CoordinatorConfig"
    now: float
    """This machine's time in Unix seconds."""
    address: Address | Trouble
    deployment: Deployment | Trouble
    folders: Mapping[Path, FolderFacts | Trouble]
    device: DeviceFacts | Trouble | None = None
    engine: EngineProbe | Trouble | None = None
    isolation: IsolationFacts | Trouble | None = None
    port: Trouble | None = None
    """Why the coordinator's port is not free. None if it is free, or if the role is not a coordinator."""
    chain: ChainFacts | Trouble | None = None
    pool: PoolFacts | Trouble | None = None
    coordinator: CoordinatorFacts | Trouble | None = None
    relays: Mapping[str, PolicyRecord | Trouble] | None = None
    """Record of the newest policy from each relay, by URL."""

    @property
    def record(self) -> PolicyRecord | None:
        """Record of the newest policy, with the hash that is on chain. None if no relay serves it."""
        answers = (self.relays or {}).values()
        return next((answer for answer in answers if isinstance(answer, PolicyRecord)), None)

    @property
    def params(self) -> PoolParams | None:
        """The pool's parameters. None if their hash differs from the hash on chain."""
        params = self.coordinator.params if isinstance(self.coordinator, CoordinatorFacts) else None
        return params if isinstance(params, PoolParams) else None


Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row of the output.

    Example: Check(name="balance", status="fail", detail="0x11... has 0 ether", fix="Send ether to it").
    """

    name: str
    status: Status
    detail: str
    """What was found, with values. For a skipped check, the row that must be fixed first."""
    fix: str = ""
    """How to fix it, often a command. Empty if nothing is wrong."""


def ok(name: str, detail: str) -> Check:
    return Check(name=name, status="ok", detail=detail)


def warn(name: str, detail: str, fix: str) -> Check:
    return Check(name=name, status="warn", detail=detail, fix=fix)


def fail(name: str, detail: str, fix: str) -> Check:
    return Check(name=name, status="fail", detail=detail, fix=fix)


def tell(name: str, trouble: Trouble) -> Check:
    return fail(name, trouble.detail, trouble.fix)


def skip(name: str, needed: str) -> Check:
    return Check(name=name, status="skip", detail=f'not checked; fix the row "{needed}" first')
