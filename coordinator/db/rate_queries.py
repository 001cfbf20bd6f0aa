"""What a pool did in each minute and in each step of its training, for pages that show its course.

The writer of a submission counts it in the same transaction, so the counts agree with the rows. Old minutes are
removed, because a page shows days.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import JSON, delete, func, insert, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from coordinator.db.column_types import Number
from coordinator.db.models import Base
from covey.protocol.api.trainer import StepPoint, TaskTypePoint

MINUTE_SECONDS = 60
KEPT_SECONDS = 30 * 86_400
"""Age in seconds from which a minute is removed."""


class MinuteRow(Base):
    """What was submitted and decided in a minute. A minute without a row had nothing."""

    __tablename__ = "minutes"
    start: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=False)
    """Unix seconds at which the minute began."""
    submitted: Mapped[int] = mapped_column(default=0)
    accepted: Mapped[int] = mapped_column(default=0)
    rejected: Mapped[int] = mapped_column(default=0)
    """Submissions that were rejected for a hard reason."""
    void: Mapped[int] = mapped_column(default=0)
    units: Mapped[int] = mapped_column(Number, default=0)
    """Units of the accepted submissions."""


class StepPointRow(Base):
    """Metrics of a step that the trainer reported."""

    __tablename__ = "step_points"
    step: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=False)
    reported_at: Mapped[float]
    """Unix seconds at which the report came."""
    reward_mean: Mapped[float]
    reward_std: Mapped[float]
    live_share: Mapped[float]
    truncated_share: Mapped[float]
    staleness_mean: Mapped[float]
    tokens_per_second: Mapped[float]
    wait_seconds: Mapped[float]
    step_seconds: Mapped[float]
    task_types: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))
    """Fields of the step's `TaskTypePoint` objects. None if a version before this column recorded the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteCounts:
    """What to add to a minute. Example: MinuteCounts(accepted=1, units=512)."""

    submitted: int = 0
    accepted: int = 0
    rejected: int = 0
    void: int = 0
    units: int = 0


class RateQueries:
    """The part of the repository that is about rates over time."""

    session: Session

    def add_to_minute(self, now: float, counts: MinuteCounts) -> None:
        """Add counts to the minute of a time in Unix seconds. The first one of a minute removes outdated minutes."""
        start = int(now) // MINUTE_SECONDS * MINUTE_SECONDS
        values = {name: getattr(counts, name) for name in MinuteCounts.__slots__}
        changes = {
            getattr(MinuteRow, name): getattr(MinuteRow, name) + value for name, value in values.items() if value
        }
        changed = update(MinuteRow).where(MinuteRow.start == start).values(changes)
        options = {"synchronize_session": False}
        if not changes or self.session.connection().execute(changed, execution_options=options).rowcount:
            return
        self.session.execute(insert(MinuteRow), [{"start": start, **values}])
        self.session.execute(delete(MinuteRow).where(MinuteRow.start < start - KEPT_SECONDS), execution_options=options)

    def list_minutes(self, *, since: int) -> Sequence[MinuteRow]:
        """Return the minutes that began at a time in Unix seconds or later, oldest first."""
        query = select(MinuteRow).where(MinuteRow.start >= since).order_by(MinuteRow.start)
        return self.session.scalars(query).all()

    def sum_minute_units(self, *, since: int) -> int:
        """Return the units of the submissions that were accepted since a time in Unix seconds."""
        query = select(func.coalesce(func.sum(MinuteRow.units), 0)).where(MinuteRow.start >= since)
        return int(self.session.scalar(query) or 0)

    def record_point(
        self, step: int, point: StepPoint, *, now: float, task_types: Sequence[TaskTypePoint] = ()
    ) -> None:
        """Record the metrics of a step. A later report of the same step replaces them."""
        types = [each.model_dump() for each in task_types]
        self.session.merge(StepPointRow(step=step, reported_at=now, task_types=types, **point.model_dump()))
        self.session.flush()

    def list_points(self, *, limit: int) -> Sequence[StepPointRow]:
        """Return the newest points, at most `limit`, oldest first."""
        newest = self.session.scalars(select(StepPointRow).order_by(StepPointRow.step.desc()).limit(limit))
        return list(newest)[::-1]

    def list_points_evenly(self, most: int) -> Sequence[StepPointRow]:
        """Return points over the whole course, at most `most` and the newest one, oldest first."""
        first, last = self.session.execute(select(func.min(StepPointRow.step), func.max(StepPointRow.step))).one()
        if last is None:
            return []
        every = -(-(last - first + 1) // most)
        query = select(StepPointRow).where(StepPointRow.step % every == last % every)
        return self.session.scalars(query.order_by(StepPointRow.step)).all()
