"""The batches that were learned since the newest checkpoint, on disk, so that a restart can learn them again.

A file has everything that a step's updates depend on except the learner's state: the samples with their advantages and
log-probabilities, bit for bit, as all ranks receive them. No earlier policy and no server is needed to learn it again.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path

from covey.errors import OperatorError
from covey.protocol.ids import Step
from covey.runtime.files import write_atomically
from covey.runtime.full_disk import ExplainFullDisk
from trainer.distributed.commands import Batches, RankCommand, Verb, decode_order, encode_order

_DIGEST_BYTES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnedStep:
    """A step that was learned."""

    batches: Batches
    report: dict[str, float]
    """Metrics of the step, as `State.report` has them."""


class StepJournal:
    """A folder with one file per step, for example `journal/7`: a SHA-256, then a command as ranks receive it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        for draft in root.glob(".*"):
            draft.unlink()

    def write(self, step: Step, batches: Batches, report: dict[str, float]) -> None:
        """Write what `step` has learned. It is on disk when this returns.

        Raises OperatorError("disk_full") if the disk is full.
        """
        text = json.dumps(report, allow_nan=False)
        data = encode_order(RankCommand(verb=Verb.LEARN, text=text, batches=batches))
        with ExplainFullDisk(self._root, f"the batch of step {step}"):
            write_atomically(self._root / str(step), hashlib.sha256(data).digest() + data)

    def list_steps(self, first: Step) -> list[Step]:
        """Return the steps from `first` on that can be learned again one after the other, in ascending order."""
        return [*takewhile(lambda step: (self._root / str(step)).exists(), map(Step, count(first)))]

    def has_later(self, step: Step) -> bool:
        """Return whether a step after `step` has a file."""
        return any(file.name.isdecimal() and int(file.name) > step for file in self._root.iterdir())

    def read(self, step: Step) -> LearnedStep:
        """Return what `step` has learned. Raises OperatorError("damaged_journal") if the file was changed."""
        file = self._root / str(step)
        content = file.read_bytes()
        data = content[_DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != content[:_DIGEST_BYTES]:
            raise OperatorError(
                "damaged_journal",
                f"{file}, the batch from which step {step} learned, was changed after it was written",
                fix="Put a copy of the file there, or remove it so that the step gets a new batch if its policy is not "
                "published yet",
            )
        order = decode_order(data)
        return LearnedStep(batches=order.batches, report=json.loads(order.text))

    def retain(self, is_kept: Callable[[Step], bool]) -> None:
        """Remove the files of all steps for which `is_kept` returns False."""
        for file in list(self._root.iterdir()):
            if file.name.isdecimal() and not is_kept(Step(int(file.name))):
                file.unlink()
