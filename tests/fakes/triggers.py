"""Messages to the jobs, noted instead of sent, and run when a test says so."""

from collections.abc import Iterable
from typing import Any

from coordinator.jobs import build_jobs


class Triggers(list[str]):
    """Messages as text, such as "close_epoch 3". Example: `ctx.jobs.trigger("close_epoch", epoch=3)`."""

    def __init__(self) -> None:
        super().__init__()
        self._arguments: list[dict[str, Any]] = []

    def trigger(self, job: str, *, receipts: Iterable[str] = (), **ids: int) -> None:
        about = {"receipts": tuple(receipts)} if receipts else {}
        self.append(" ".join([job, *map(str, ids.values())]))
        self._arguments.append(ids | about)

    remind = trigger

    def clear(self) -> None:
        super().clear()
        self._arguments.clear()

    def list_receipts(self) -> list[str]:
        """Return the receipts of all messages."""
        return [receipt for arguments in self._arguments for receipt in arguments.get("receipts", ())]

    def run_all(self, ctx: Any) -> None:
        """Run the jobs that are asked for, and those that they ask for."""
        jobs = build_jobs(ctx)
        while self:
            name, arguments = self[0].split()[0], self._arguments[0]
            del self[0], self._arguments[0]
            jobs[name](**arguments)
