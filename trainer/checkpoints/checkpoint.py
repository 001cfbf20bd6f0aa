"""What survives a kill: resume states (masters, optimizer, counters) and the policies as they were published.

Called by `loop`, `app` and `follower`.  A folder appears by one rename, complete and synced; weights are safetensors,
the rest is JSON.  All ranks write to a checkpoint; it is the same state for any number of them.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedTokenizerBase

from covey.errors import OperatorError, ProtocolError
from covey.model.policy_files import DTYPES, require_policy, save_policy
from covey.protocol.ids import Step
from covey.runtime.files import sync
from covey.runtime.full_disk import ExplainFullDisk
from trainer.algorithm.learner import Learner
from trainer.algorithm.lora import merge_adapters
from trainer.checkpoints.tensor_files import load_tensors, require_undamaged, save_tensors, write_digests
from trainer.distributed.commands import RankCommand, Verb
from trainer.distributed.sharding import gather_weights

_MASTERS, _OPTIMIZER, _STATE = "masters", "optimizer", "state.json"
_EXPORTED = "bfloat16"


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The small part of a checkpoint."""

    step: Step
    """The policy that the masters stand for."""
    updates: int
    report: dict[str, float]
    """Metrics of the updates that led here, not yet written when the checkpoint is; empty for step 0."""
    base_hash: str = ""
    """`Learner.base_hash`: adapters fit no other model."""


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
        """Let `write` fill a draft, then make it the folder of `step`; one that stands there is replaced.

        Raises OperatorError("disk_full") when there is no room; what was written is removed again.
        """
        draft, target = self._root / f".{step}", self.get_path(step)
        with ExplainFullDisk(self._root, f"step {step}", draft=draft):
            draft.mkdir()
            write(draft)
            for path in draft.iterdir():
                sync(path)
            sync(draft)
            if target.exists():
                self._remove(step)
            draft.replace(target)
            sync(self._root)
        return target

    def retain(self, is_kept: Callable[[Step], bool]) -> None:
        """Remove the folders of all other steps."""
        for step in self.list_steps():
            if not is_kept(step):
                self._remove(step)

    def _remove(self, step: Step) -> None:
        gone = self._root / f".gone-{step}"
        self.get_path(step).replace(gone)  # a half-removed folder must not look like a whole one
        shutil.rmtree(gone)


class Checkpoints:
    """Resume states in one folder; the newest counts."""

    def __init__(self, root: Path, *, keep: int) -> None:
        self._folders, self._keep = StepFolders(root), keep

    def save(self, learner: Learner, step: Step, report: dict[str, float]) -> None:
        """Keep everything that the next step depends on, and forget what is older than the newest `keep`."""
        state = State(step=step, updates=learner.updates, report=report, base_hash=learner.base_hash)

        def write(folder: Path) -> None:
            (folder / _STATE).write_text(json.dumps(asdict(state), allow_nan=False))
            with learner.ranks.together(RankCommand(verb=Verb.SAVE, text=str(folder.resolve()))):
                save_state(learner, folder)
            write_digests(folder)

        self._folders.add(step, write)
        kept = set(self._folders.list_steps()[-self._keep :])
        self._folders.retain(kept.__contains__)

    def restore(self, learner: Learner) -> State | None:
        """Bring the learner back to the newest checkpoint; None when there is none.  Raises OperatorError."""
        steps = self._folders.list_steps()
        if not steps:
            return None
        folder = self._folders.get_path(steps[-1])
        with learner.ranks.together(RankCommand(verb=Verb.RESTORE, text=str(folder.resolve()))):
            return load_state(learner, folder)


def save_state(learner: Learner, folder: Path) -> None:
    """Write this rank's part of masters and moments; all ranks at once."""
    save_tensors({_MASTERS: learner.get_masters(), _OPTIMIZER: learner.get_optimizer_tensors()}, folder)


@torch.no_grad()
def load_state(learner: Learner, folder: Path) -> State:
    """Bring this rank's part of the learner to what `folder` holds, once all of it is found good; all ranks at once.

    Raises OperatorError("bad_checkpoint").
    """
    try:
        if learner.ranks.rank == 0:  # for all: the folder is one that they share
            require_undamaged(folder)
        state = State(**json.loads((folder / _STATE).read_bytes()))
        if state.base_hash != learner.base_hash:
            raise ValueError("its adapters were trained beside other weights, or with another lora_alpha")
        masters, moments = learner.build_tensors(state.updates)
        load_tensors(masters | moments, folder)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise OperatorError(
            "bad_checkpoint",
            f"{folder} does not fit: {error}",
            fix="Resume with the model it was made with, or remove the folder to resume from an earlier one",
        ) from error
    for name, tensor in learner.get_masters().items():
        tensor.copy_(masters[name])
    learner.restore(moments, state.updates)
    return state


def export_policy(exports: StepFolders, learner: Learner, tokenizer: PreTrainedTokenizerBase, step: Step) -> Path:
    """The policy as workers get it: bfloat16 weights, config and tokenizer; equal masters give equal bytes.

    Adapters are merged into a copy of the model, which takes its memory once more meanwhile.
    """
    model = merge_adapters(learner.model)
    with learner.ranks.together(RankCommand(verb=Verb.GATHER)):
        weights = gather_weights(model, DTYPES[_EXPORTED])
    return exports.add(step, lambda folder: save_policy(model, tokenizer, folder, _EXPORTED, weights))


def is_whole(exports: StepFolders, step: Step) -> bool:
    """Whether the policy of `step` is there and can be read; the masters can make it again."""
    if step not in exports.list_steps():
        return False
    try:
        require_policy(exports.get_path(step))
    except (ProtocolError, OperatorError):
        return False
    return True
