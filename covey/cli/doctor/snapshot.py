"""What `covey doctor --config` sees of a role's machine, chain, coordinator and relays, and the rows that it shows.

Seen by `doctor_gather`, judged by `doctor_machine` and `doctor_checks`.
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
    """Why something could not be seen, and what to do about it.  Example: detail="node.key cannot be read"."""

    detail: str
    fix: str = ""

    @classmethod
    def of(cls, error: CoveyError) -> Self:
        """Messages say what to do after the first sentence, if not in `fix`."""
        if isinstance(error, OperatorError):
            return cls(detail=error.message.removesuffix(f". {error.fix}"), fix=error.fix)
        detail, _, fix = error.message.partition(". ")
        return cls(detail=detail, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The device that a model computes on.  Example: name="NVIDIA H100 80GB HBM3", memory=85_000_000_000."""

    name: str
    memory: int
    """In bytes, all of it."""
    has_idle_gpu: bool = False
    """Whether the settings name the CPU and the machine has an NVIDIA GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProbe:
    """The engine that the role will use, which the pool's thresholds hold for on this hardware.

    Example: name="hf", build="covey 0.1.0, torch 2.13.0+cpu, transformers 5.1.0"."""

    name: str
    build: str
    """Installed libraries of the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationFacts:
    """The rung that holds, and the better ones that do not.  Example: "landlock", after a missing bubblewrap."""

    isolation: Isolation
    failed: tuple[RungTrial, ...] = ()
    """Trials of the better rungs, best first."""

    @property
    def detail(self) -> str:
        """Example: "landlock (Landlock ABI 4, seccomp); does not shield processes; bwrap: not installed"."""
        parts = [f"{self.isolation.rung} ({self.isolation.version})"]
        if self.isolation.open_doors:
            parts.append(f"does not shield {', '.join(self.isolation.open_doors)}")
        if not self.isolation.has_own_root:
            parts += [f"{trial.rung}: {trial.reason}" for trial in self.failed]
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """A folder that a role writes to."""

    free: int
    """Bytes that are free on its disk."""
    held: int
    """Bytes that are in it already."""
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
    """Wei of the role's key; None without a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """The pool, as its contracts have it, and what the role's account is in it."""

    state: PoolState
    terms: PoolTerms
    operator: Address
    is_validator: bool
    contributor: Address | None
    """Contributor that vouches for the role's key as a node. None: nobody does."""
    nodes: tuple[Address, ...]
    """Nodes that work for that contributor, on any machine; empty without one."""
    unit: TokenUnit
    """Unit in which rows show amounts of the pool's token."""
    stake: int
    """A worker: free stake of its contributor; a validator or coordinator: the bond of its key."""
    steps: int
    """How many policies are published."""
    newest_hash: Hash | None
    """Manifest hash of the newest policy; None before the first."""

    def format_amount(self, amount: int) -> str:
        """Example: "1.5 CVT"; "1500000000000000000" in the smallest unit."""
        return format_amount(amount, self.unit)

    def format_argument(self, amount: int) -> str:
        """As `covey stake add` takes an amount.  Example: "1.5"; "1500000000000000000 --raw" in the smallest unit."""
        number = format_amount(amount, TokenUnit(self.unit.decimals, ""))
        return f"{number} --raw" if self.unit == SMALLEST else number


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorFacts:
    """What the coordinator says of itself, and of the role's node."""

    pool: int
    params: PoolParams | Trouble
    """Trouble where they do not have the chain's hash."""
    offset: float
    """Seconds by which this machine's clock is ahead of the coordinator's."""
    nodes: Mapping[Address, NodeView]
    """The nodes that have registered with it, by address."""
    relays: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that was seen.  None: not looked at, because the role has no use for it or what it needs was not seen."""

    role: Role
    settings: "RoleSettings | CoordinatorConfig"
    now: float
    """Unix seconds of this machine."""
    address: Address | Trouble
    deployment: Deployment | Trouble
    folders: Mapping[Path, FolderFacts | Trouble]
    device: DeviceFacts | Trouble | None = None
    engine: EngineProbe | Trouble | None = None
    isolation: IsolationFacts | Trouble | None = None
    port: Trouble | None = None
    """Why the coordinator's port is not free; None where it is, or for another role."""
    chain: ChainFacts | Trouble | None = None
    pool: PoolFacts | Trouble | None = None
    coordinator: CoordinatorFacts | Trouble | None = None
    relays: Mapping[str, Manifest | Trouble] | None = None
    """The newest policy's manifest as each relay gives it."""

    @property
    def manifest(self) -> Manifest | None:
        """The newest policy's manifest, which has the chain's hash."""
        found = (self.relays or {}).values()
        return next((each for each in found if isinstance(each, Manifest)), None)

    @property
    def params(self) -> PoolParams | None:
        """The pool's parameters, where they have the chain's hash."""
        found = self.coordinator.params if isinstance(self.coordinator, CoordinatorFacts) else None
        return found if isinstance(found, PoolParams) else None


Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row.  Example: Check(name="balance", status="fail", detail="0x11... has 0 ether", fix="Send ether to it")."""

    name: str
    status: Status
    detail: str
    """What was seen, with values; for "skip", what has to be mended first."""
    fix: str = ""
    """What to do, often a command; empty where nothing is wrong."""


def ok(name: str, detail: str) -> Check:
    return Check(name=name, status="ok", detail=detail)


def warn(name: str, detail: str, fix: str) -> Check:
    return Check(name=name, status="warn", detail=detail, fix=fix)


def fail(name: str, detail: str, fix: str) -> Check:
    return Check(name=name, status="fail", detail=detail, fix=fix)


def tell(name: str, trouble: Trouble) -> Check:
    return fail(name, trouble.detail, trouble.fix)


def skip(name: str, needed: str) -> Check:
    return Check(name=name, status="skip", detail=f"needs the row {needed}")
