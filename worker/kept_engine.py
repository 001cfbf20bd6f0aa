"""The engine of a worker with several pools, kept from one to the next if it can do the work of both."""

from covey.engines.base import Engine
from covey.engines.factory import EnginePlan
from covey.runtime.log import get_logger


class KeptEngine:
    """Holds at most one engine, because two would not fit on an accelerator."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._plan: EnginePlan | None = None

    def open(self, plan: EnginePlan) -> Engine:
        """Return the held engine if it serves the plan. Otherwise close it and build another one."""
        if self._engine is not None and self._plan is not None and self._plan.serves(plan):
            return self._engine
        if self._engine is not None:
            get_logger().info("this pool needs another engine, starting it", engine=plan.name)
        self.close()
        self._engine, self._plan = plan.build(), plan
        return self._engine

    def close(self) -> None:
        """Close the held engine, if there is one."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._plan = None
