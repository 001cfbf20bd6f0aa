"""The newest numbers of a run, for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from covey.runtime.prometheus import build_gauge
from trainer.monitoring.metrics import Values
from trainer.monitoring.sinks import select_numbers


class NewestNumbers:
    """A sink. Example: `numbers.write("update", 3, {"reward/mean": 0.5})`."""

    def __init__(self) -> None:
        self._step = -1
        self._numbers: dict[str, float] = {}

    def write(self, event: str, step: int, values: Values) -> None:
        """Keep the numbers of an update or an evaluation, with the names of docs/reference/metrics.md."""
        if event == "update":
            self._step = step
        self._numbers.update(select_numbers(event, values))

    def read(self) -> Iterator[Metric]:
        """Yield them, and the newest step that this process has trained: -1 before the first."""
        yield build_gauge("covey_trained_step", "Newest step that was trained. -1 before the first.", self._step)
        text = "Newest numbers of updates and evaluations, by the name in metrics.jsonl."
        yield build_gauge("covey_training", text, dict(self._numbers), label="name")
