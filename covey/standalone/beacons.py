"""Record hashes of a run's policies, from which draws and seeds follow, as those on chain do in a pool."""

import json
import threading
from pathlib import Path

from covey.protocol.ids import ZERO_HASH, Hash, PoolId, Step
from covey.runtime.files import append, read_lines, write_atomically
from covey.runtime.full_disk import ExplainFullDisk
from covey.shardcast.policy_export import build_record
from trainer.checkpoints.checkpoint import StepFolders


class Beacons:
    """Record hashes in a file with one line per policy. Example line: {"step": 3, "record_hash": "0x..."}."""

    def __init__(self, path: Path, exports: StepFolders, pool: PoolId) -> None:
        self._path, self._exports, self._pool = path, exports, pool
        self._turn = threading.RLock()  # one thread writes policies, and another one generates
        path.touch()
        lines = [json.loads(line) for line in read_lines(path)]
        self._hashes: dict[Step, Hash] = {Step(line["step"]): line["record_hash"] for line in lines}

    def get(self, step: Step) -> Hash:
        """Return the record hash of a policy. The export of each policy without a line must exist."""
        with self._turn:
            if step not in self._hashes:
                parent = ZERO_HASH if step == 0 else self.get(Step(step - 1))
                record = build_record(self._exports.get_path(step), pool=self._pool, step=step, parent=parent)
                self._add(step, record.compute_hash())
            return self._hashes[step]

    def find(self, step: Step) -> Hash | None:
        """Return the record hash of a policy if the file has it."""
        with self._turn:
            return self._hashes.get(step)

    def forget_after(self, step: Step) -> None:
        """Remove the record hashes of later policies, which a crash has lost and which another policy may replace."""
        with self._turn:
            kept = {each: record_hash for each, record_hash in self._hashes.items() if each <= step}
            if kept == self._hashes:
                return
            with ExplainFullDisk(self._path.parent, self._path.name):
                write_atomically(self._path, b"".join(_build_line(*each) for each in kept.items()))
            self._hashes = kept

    def _add(self, step: Step, record_hash: Hash) -> None:
        with ExplainFullDisk(self._path.parent, self._path.name):
            append(self._path, _build_line(step, record_hash))
        self._hashes[step] = record_hash


def _build_line(step: Step, record_hash: Hash) -> bytes:
    return (json.dumps({"step": step, "record_hash": record_hash}) + "\n").encode()
