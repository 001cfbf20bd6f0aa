"""What the trainer reports: one JSON object a line in `metrics.jsonl`, one line for each (event, step).

Called by `loop`.  A line is written by one system call; a torn last line of a killed process is cut off.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path


class Metrics:
    """Example line: {"event": "evaluation", "step": 3, "reward": 0.61, "n": 512}."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        lines = [json.loads(line) for line in whole.splitlines()]
        self._seen = {(line["event"], line["step"]) for line in lines}

    def has(self, event: str, step: int) -> bool:
        """Whether such a line stands there, from an earlier process too."""
        return (event, step) in self._seen

    def record(self, event: str, step: int, values: Mapping[str, float | int | str]) -> None:
        """Append a line, unless the step has one of this event: work that a crash repeats is reported once."""
        if self.has(event, step):
            return
        line = json.dumps({"event": event, "step": step, **values}, allow_nan=False) + "\n"
        with self._path.open("ab", buffering=0) as file:
            file.write(line.encode())
        self._seen.add((event, step))
