"""Body of `/v1/overview`: a pool at a glance, with what needs its operator.

Amounts are in the token's smallest unit.
"""

from pydantic import Field

from covey.protocol.api.common import Body, UInt64, Word
from covey.protocol.api.trainer import StepPoint, TaskTypePoint

Amount = int
"""Amount in the token's smallest unit."""


class NodeCountsView(Body):
    """Numbers of nodes by state. Each node counts once, for the first state that is true of it."""

    removed: UInt64
    suspended: UInt64
    dead: UInt64
    """Nodes that were silent for two minutes."""
    unhealthy: UInt64
    """Nodes that were silent for one minute."""
    waiting: UInt64
    """Nodes that ask for a task and have none."""
    busy: UInt64


class HourView(Body):
    """What was submitted and decided in the last hour."""

    submitted: UInt64
    accepted: UInt64
    rejected: UInt64
    void: UInt64
    units: UInt64
    """Units of the accepted submissions."""


class MoneyView(Body):
    """What the pool can still pay. Fields are None while the chain's node has not answered."""

    decimals: int = Field(ge=0, le=36)
    """Number of digits after the point with which people write amounts of the token."""
    symbol: str = Field(max_length=16)
    """Name of the token's unit. Empty if amounts are shown in the smallest unit."""
    price: Amount
    """Reward of 1,000,000 units in an epoch that begins now."""
    next_price: Amount | None = None
    """Announced price, from `next_price_at` on. None if none is announced."""
    next_price_at: UInt64 | None = None
    """Unix time in seconds. The next price holds for epochs that begin then or later."""
    escrow: Amount | None
    """What the contract holds for the pool."""
    promised: Amount | None
    """The part of the escrow that posted epochs have promised and nobody has claimed."""
    spent_per_day: Amount
    """Pay of the work that was accepted in the last 24 hours, and fees of the epochs that began in that time."""
    days_left: float | None
    """Days until the escrow is promised, at that rate. None: nothing was accepted, or the escrow is not known."""


class ReadinessSpread(Body):
    """Seconds from the announcement of a policy until a node has it, over nodes that were heard lately.

    Of each node, the last policy that followed another one counts.
    """

    nodes: UInt64
    """Number of these nodes."""
    p50_seconds: float
    p95_seconds: float


class AlarmView(Body):
    """What needs an operator, in the same words on pages, in the API and in `covey status`.

    Example: AlarmView(code="escrow_short", text="The escrow lasts 1.5 days, and 3 days are the limit.",
    advice="Add tokens with covey pool fund.").
    """

    code: Word
    """Stable name."""
    text: str = Field(max_length=600)
    """Sentence with the value and its limit."""
    advice: str = Field(max_length=400)
    """Sentence that says what to do."""

    @property
    def line(self) -> str:
        """Both sentences."""
        return f"{self.text} {self.advice}"


class OverviewView(Body):
    """A pool at a glance, in less than 2 kB without its alarms."""

    pool: UInt64
    name: str
    time: UInt64
    """Time of the coordinator's clock in Unix seconds."""
    block: UInt64
    step: int = Field(ge=-1)
    """Newest policy on chain. -1: none."""
    ended: bool
    paused_since: UInt64 | None
    """Unix seconds since when no task is assigned. None: tasks are assigned."""
    nodes: NodeCountsView
    tasks: dict[str, UInt64]
    """Numbers of tasks that are pending or leased, by state."""
    submissions: dict[str, UInt64]
    reasons: dict[str, UInt64]
    cases: dict[str, UInt64]
    oldest_undecided_seconds: float | None
    """Age of the oldest submission without a verdict, in seconds. None: all are decided."""
    hour: HourView
    money: MoneyView
    newest: StepPoint | None
    """Metrics of the newest step that the trainer reported."""
    task_types: tuple[TaskTypePoint, ...]
    """Types of tasks in the batch of that step, at most 8, the largest first."""
    readiness: ReadinessSpread | None
    """None: no node that was heard lately has followed a policy."""
    alarms: tuple[AlarmView, ...]
    """What needs an operator, most urgent first."""
