"""What `covey doctor --config` sees of a role's machine, chain, coordinator and relays, and the rows that it shows.

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
from covey.protocol.ids import Address, Hash
from covey.protocol.manifest import Manifest
from covey.protocol.params import PoolParams
from covey.runtime.settings import RoleSettings
from covey.sandbox import Isolation, RungTrial

if TYPE_CHECKING:
    from coordinator.config import CoordinatorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Reason why something could not be read, and what to do about it. Example: detail="node.key cannot be read"."""

    detail: str
    fix: str = ""

    @classmethod
    def of(cls, error: CoveyError) -> Self:
        """Convert an error. A message without a separate `fix` says what to do after its first sentence."""
        if isinstance(error, OperatorError):
            return cls(detail=error.message.removesuffix(f". {error.fix}"), fix=error.fix)
        detail, _, fix = error.message.partition(". ")
        return cls(detail=detail, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The device that a model computes on. Example: name="NVIDIA H100 80GB HBM3", memory=85_000_000_000."""

    name: str
    memory: int
    """Total memory in bytes."""
    has_idle_gpu: bool = False
    """Whether the machine has an NVIDIA GPU although the settings name the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProbe:
    """The engine that the role will use. The pool's thresholds apply to it on this hardware.

    Example: name="hf", build="covey 0.1.0, torch 2.13.0+cpu, transformers 5.1.0".
    """

    name: str
    build: str
    """Installed libraries of the engine, with their versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationFacts:
    """The isolation rung in use, and the better ones that failed. Example: "landlock", if bubblewrap is missing."""

    isolation: Isolation
    failed: tuple[RungTrial, ...] = ()
    """Trials of the better rungs, best first."""

    @property
    def detail(self) -> str:
        """One line about the rungs.

        Example: "landlock (Landlock ABI 4, seccomp); does not shield processes; bwrap: not installed".
        """
        parts = [f"{self.isolation.rung} ({self.isolation.version})"]
        if self.isolation.open_doors:
            parts.append(f"does not isolate from {', '.join(self.isolation.open_doors)}")
        if not self.isolation.has_own_root:
            parts += [f"{trial.rung}: {trial.reason}" for trial in self.failed]
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """A folder that a role writes to."""

    free: int
    """Free bytes on its disk."""
    held: int
    """Bytes of the files that it already holds."""
    is_writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFacts:
    """The node of the chain, and the contracts' code."""

    url: str
    chain_id: int
    head_time: int
    """Unix seconds of the newest block."""
    gas_price: int
    """Wei per unit of gas that a transaction offers now."""
    codeless: tuple[str, ...]
    """Names of contracts whose addresses hold no code."""
    balance: int | None
    """Balance of the role's key in wei; None without a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """The pool as it is on chain, and what the role's account is in it."""

    state: PoolState
    terms: PoolTerms
    operator: Address
    is_validator: bool
    contributor: Address | None
    """Contributor that vouches for the role's key as a node; None if nobody does."""
    nodes: tuple[Address, ...]
    """Nodes that work for that contributor, on any machine; empty without one."""
    unit: TokenUnit
    """Unit in which rows show amounts of the pool's token."""
    stake: int
    """Free stake of a worker's contributor, or the bond of a validator's or coordinator's key, in smallest units."""
    steps: int
    """Number of published policies."""
    newest_hash: Hash | None
    """Manifest hash of the newest policy; None before the first."""

    def format_amount(self, amount: int) -> str:
        """Format an amount, for example as "1.5 CVT", or as "1500000000000000000" in the smallest unit."""
        return format_amount(amount, self.unit)

    def format_argument(self, amount: int) -> str:
        """Format an amount as arguments of `covey stake add`.

        Example: "1.5", or "1500000000000000000 --raw" in the smallest unit.
        """
        number = format_amount(amount, TokenUnit(self.unit.decimals, ""))
        return f"{number} --raw" if self.unit == SMALLEST else number


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorFacts:
    """What the coordinator reports about itself and its nodes."""

    pool: int
    params: PoolParams | Trouble
    """The pool's parameters, or `Trouble` if they do not have the chain's hash."""
    offset: float
    """Seconds by which this machine's clock is ahead of the coordinator's."""
    nodes: Mapping[Address, NodeView]
    """Nodes that have registered with the coordinator, by address."""
    relays: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that was gathered.

    None means that it was not looked at, because the role does not need it or because a prerequisite is missing.
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
    """Reason why the coordinator's port is not free; None if it is free, and for other roles."""
    chain: ChainFacts | Trouble | None = None
    pool: PoolFacts | Trouble | None = None
    coordinator: CoordinatorFacts | Trouble | None = None
    relays: Mapping[str, Manifest | Trouble] | None = None
    """Manifest of the newest policy as each relay serves it, by URL."""

    @property
    def manifest(self) -> Manifest | None:
        """Manifest of the newest policy, which has the chain's hash; None if no relay serves it."""
        answers = (self.relays or {}).values()
        return next((answer for answer in answers if isinstance(answer, Manifest)), None)

    @property
    def params(self) -> PoolParams | None:
        """The pool's parameters if they have the chain's hash, otherwise None."""
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
    """What was seen, with values. For "skip", the row that must be fixed first."""
    fix: str = ""
    """What to do, often a command. Empty if nothing is wrong."""


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
