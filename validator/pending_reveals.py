"""Verdicts that are committed but not revealed yet. They are stored durably, so a crash does not lose them."""

import json
from pathlib import Path

from covey.protocol.api.validator import RevealRequest
from covey.runtime.files import write_atomically


class PendingReveals:
    """A folder with one JSON file per commitment."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def add(self, request: RevealRequest) -> None:
        write_atomically(self._path(request.judgement), request.model_dump_json().encode())

    def find(self, judgement: int) -> RevealRequest | None:
        path = self._path(judgement)
        return RevealRequest.model_validate(json.loads(path.read_bytes())) if path.exists() else None

    def remove(self, judgement: int) -> None:
        self._path(judgement).unlink(missing_ok=True)

    def _path(self, judgement: int) -> Path:
        return self._root / f"{judgement}.json"
