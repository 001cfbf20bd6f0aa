"""Verdicts that are committed and not yet revealed, kept durably: after a crash they can still be revealed."""

import json
from pathlib import Path

from covey.protocol.api.validator import RevealRequest
from covey.runtime.files import write_atomically


class PendingReveals:
    """A folder with one JSON file for every commitment."""

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
