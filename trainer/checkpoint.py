"""What survives a kill: resume states (masters, optimizer, counters) and the policies as they were published.

Called by `loop` and `app`.  A folder appears by one rename, complete and synced; weights are safetensors, the rest is
JSON.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from covey.errors import OperatorError, ProtocolError
from covey.model.files import load_weights, save_policy, save_weights
from covey.protocol.ids import Step
from trainer.learner import Learner

_WEIGHTS, _OPTIMIZER, _STATE = "masters.safetensors", "optimizer.safetensors", "state.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The small part of a checkpoint."""

    step: Step
    """The policy that the masters stand for."""
    updates: int
    report: dict[str, float]
    """Metrics of the updates that led here, not yet written when the checkpoint is; empty for step 0."""


class StepFolders:
    """A folder with one complete sub-folder for each kept step.  Example: `exports/7`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        for draft in root.glob(".*"):
            shutil.rmtree(draft)

    def list_steps(self) -> list[Step]:
        """Ascending."""
        return sorted(Step(int(path.name)) for path in self._root.iterdir() if path.name.isdecimal())

    def get_path(self, step: Step) -> Path:
        return self._root / str(step)

    def add(self, step: Step, write: Callable[[Path], None]) -> Path:
        """Let `write` fill a draft, then make it the folder of `step`; one that stands there is replaced."""
        draft, target = self._root / f".{step}", self.get_path(step)
        draft.mkdir()
        write(draft)
        for path in draft.iterdir():
            _sync(path)
        _sync(draft)
        if target.exists():
            shutil.rmtree(target)
        draft.replace(target)
        _sync(self._root)
        return target

    def retain(self, is_kept: Callable[[Step], bool]) -> None:
        """Remove the folders of all other steps."""
        for step in self.list_steps():
            if not is_kept(step):
                gone = self._root / f".gone-{step}"
                self.get_path(step).replace(gone)  # a half-removed folder must not look like a whole one
                shutil.rmtree(gone)


class Checkpoints:
    """Resume states in one folder; the newest counts."""

    def __init__(self, root: Path, *, keep: int) -> None:
        self._folders, self._keep = StepFolders(root), keep

    def save(self, learner: Learner, step: Step, report: dict[str, float]) -> None:
        """Keep everything that the next step depends on, and forget what is older than the newest `keep`."""
        state = State(step=step, updates=learner.updates, report=report)

        def write(folder: Path) -> None:
            save_weights(learner.model, folder / _WEIGHTS, "float32")
            tensors = {name: tensor.cpu().contiguous() for name, tensor in learner.get_optimizer_tensors().items()}
            save_file(tensors, folder / _OPTIMIZER)
            (folder / _STATE).write_text(json.dumps(asdict(state), allow_nan=False))

        self._folders.add(step, write)
        kept = set(self._folders.list_steps()[-self._keep :])
        self._folders.retain(kept.__contains__)

    def restore(self, learner: Learner) -> State | None:
        """Bring the learner back to the newest checkpoint; None when there is none.  Raises OperatorError."""
        steps = self._folders.list_steps()
        if not steps:
            return None
        folder = self._folders.get_path(steps[-1])
        try:
            state = State(**json.loads((folder / _STATE).read_bytes()))
            load_weights(learner.model, folder / _WEIGHTS, "float32")
            learner.restore(load_file(folder / _OPTIMIZER), state.updates)
        except (ProtocolError, SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
            raise OperatorError(
                "bad_checkpoint",
                f"{folder} does not fit: {error}",
                fix="Resume with the model it was made with, or remove the folder to resume from an earlier one",
            ) from error
        return state


def export_policy(exports: StepFolders, learner: Learner, tokenizer: PreTrainedTokenizerBase, step: Step) -> Path:
    """The policy as workers get it: bfloat16 weights, config and tokenizer; equal masters give equal bytes."""
    model: PreTrainedModel = learner.model
    return exports.add(step, lambda folder: save_policy(model, tokenizer, folder, "bfloat16"))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
