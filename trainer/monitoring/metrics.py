"""The trainer's metrics: one JSON object per line in `metrics.jsonl`, one line per (event, step).

An incomplete last line, left by a killed process or a full disk, is removed at the next start. Sinks (terminal, log,
`log.sinks`) receive each new line after it is written. The file is authoritative, and sinks may lack its newest line.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from covey.protocol.api.trainer import StepPoint, TaskTypePoint
from covey.protocol.learning_signs import LearningSign
from covey.runtime.files import append, read_lines
from covey.runtime.full_disk import ExplainFullDisk
from covey.runtime.log import get_logger
from trainer.config import AlarmSettings
from trainer.monitoring.alarms import GRADIENT_NORM, SIGNS, find_new_alarms
from trainer.monitoring.learning import Update, count_dead, find_new_signs, find_signs
from trainer.monitoring.metric_names import TYPE_REWARD, TYPE_SHARE

Values = Mapping[str, float | int | str]
Sink = Callable[[str, int, Values], None]
"""Function that receives event, step and values of a line after it is written."""

LOGGED = (
    "reward/mean",
    "batch/live_share",
    "batch/truncated_share",
    "policy/entropy",
    "policy/outside_clip",
    "optim/grad_norm",
    "trainer/idle_ratio",
)
"""Metrics of an update that `log_line` logs."""
POINT = {
    "reward_mean": "reward/mean",
    "reward_std": "reward/task_std",
    "live_share": "batch/live_share",
    "truncated_share": "batch/truncated_share",
    "staleness_mean": "staleness_mean",
    "tokens_per_second": "perf/tokens_per_second",
    "wait_seconds": "time/wait_for_batch",
    "step_seconds": "time/step",
}
"""Metrics of an update that the coordinator shows, by the name of the field in `StepPoint`."""


class TrainingMetrics:
    """The metrics file and its sinks. Example line: {"event": "evaluation", "step": 3, "reward": 0.61, "n": 512}."""

    def __init__(
        self,
        path: Path,
        *,
        alarms: AlarmSettings | None = None,
        stop_when_dead: int = 0,
        sinks: Sequence[Sink] = (),
    ) -> None:
        """Open the file. After `stop_when_dead` dead steps in a row a pause is due. 0 means never."""
        self._path, self._alarms, self._sinks = path, alarms or AlarmSettings(), tuple(sinks)
        self._stop_when_dead = stop_when_dead
        self._recording = threading.Lock()  # updates and publications are recorded concurrently
        path.touch()
        lines = [json.loads(line) for line in read_lines(path)]
        self._seen = {(line["event"], line["step"], line.get("sign")) for line in lines}
        self._series: dict[str, list[float]] = {sign: [] for sign in SIGNS}
        self._updates: deque[Update] = deque(maxlen=self._alarms.steps + 1)
        self._dead: deque[Update] = deque(maxlen=stop_when_dead)
        """Newest updates since the last pause."""
        self._newest: tuple[int, Update] | None = None
        """Step and metrics of the newest update. None before the first one."""
        for line in lines:
            self._extend_series(line["event"], line)
            self._extend_updates(line["event"], line["step"], line)

    @property
    def signs(self) -> tuple[LearningSign, ...]:
        """Signs that the run cannot learn, at the newest step."""
        return tuple(LearningSign(alarm.sign) for alarm in find_signs(list(self._updates), self._alarms))

    @property
    def is_pause_due(self) -> bool:
        """Whether the newest `stop_when_dead` steps are dead, and tasks were not paused since the first of them."""
        return 0 < self._stop_when_dead == count_dead(self._dead)

    def find_point(self, step: int) -> StepPoint | None:
        """Return what the coordinator shows of the newest update. None if that is not the one of `step`."""
        newest = self._newest
        if newest is None or newest[0] != step or not all(name in newest[1] for name in POINT.values()):
            return None
        return StepPoint(**{field: float(newest[1][name]) for field, name in POINT.items()})

    def list_task_types(self, step: int) -> tuple[TaskTypePoint, ...]:
        """Return the types of tasks in the newest update. Empty if that is not the one of `step`."""
        if self._newest is None or self._newest[0] != step:
            return ()
        update, (head, tail) = self._newest[1], TYPE_SHARE.split("{}")
        names = [
            key.removeprefix(head).removesuffix(tail) for key in update if key.startswith(head) and key.endswith(tail)
        ]
        return tuple(
            TaskTypePoint(
                name=name,
                share=float(update[TYPE_SHARE.format(name)]),
                reward_mean=float(update[TYPE_REWARD.format(name)]),
            )
            for name in names
        )

    def has(self, event: str, step: int) -> bool:
        """Return whether the file has a line for this event and step. It may come from an earlier process."""
        return (event, step, None) in self._seen

    def record(self, event: str, step: int, values: Values) -> None:
        """Append a line, unless the file has one for this event and step. Work repeated after a crash therefore counts
        once.

        An update is compared with earlier ones. Each new sign of collapse, and each new sign that the run cannot learn,
        adds an "alarm" line before the update's line.
        """
        with self._recording:
            if not self.has(event, step):
                self._write(event, step, values)

    def _write(self, event: str, step: int, values: Values) -> None:
        alarms: list[tuple[str, Values]] = []
        if self._extend_series(event, values):
            found = find_new_alarms(self._series, self._alarms)
            alarms += [("early sign of collapse", asdict(alarm)) for alarm in found]
        if self._extend_updates(event, step, values):
            for alarm in find_new_signs(list(self._updates), self._alarms):
                sign = LearningSign(alarm.sign)
                alarms.append((sign.sentence, {**asdict(alarm), "sign": sign.value, "advice": sign.advice}))
        new = [(text, each) for text, each in alarms if ("alarm", step, each["sign"]) not in self._seen]
        lines = [*(("alarm", each) for _, each in new), (event, values)]
        texts = [json.dumps({"event": name, "step": step, **each}, allow_nan=False) + "\n" for name, each in lines]
        with ExplainFullDisk(self._path.parent, self._path.name):
            append(self._path, "".join(texts).encode())
        for text, each in new:
            get_logger().warning(text, step=step, **each)
        for name, each in lines:
            self._seen.add((name, step, each.get("sign")))
            for sink in self._sinks:
                sink(name, step, each)

    def _extend_updates(self, event: str, step: int, values: Values) -> bool:
        """Add an update to the newest ones, or forget those before a pause. Return whether it is an update."""
        if event == "pause":
            self._dead.clear()
        elif event == "update":
            self._updates.append(values)
            self._newest = step, values
            self._dead.append(values)
        return event == "update"

    def _extend_series(self, event: str, values: Values) -> bool:
        """Add the values of an event to the series. Return whether they count.

        Only updates count, and only if they trained on something.
        """
        if event != "update" or not all(isinstance(values.get(sign), float | int) for sign in SIGNS):
            return False
        if not values[GRADIENT_NORM]:
            return False
        for sign in SIGNS:
            self._series[sign].append(float(values[sign]))
        return True


def log_line(event: str, step: int, values: Values) -> None:
    """Log the main values of an update. This is the sink of processes without a terminal."""
    if event == "update":
        shown = {name: round(float(values[name]), 4) for name in LOGGED if name in values}
        get_logger().info("step trained", step=step, **shown)
