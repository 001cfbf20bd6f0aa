"""The state that survives a crash: checkpoints (master weights, optimizer, counters) and exported policies.

A folder appears by one rename, complete and synced. Weights are safetensors, the rest is JSON. All ranks write to a
checkpoint, and any number of ranks can resume from it.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from covey.errors import OperatorError, ProtocolError
from covey.model.policy_files import DTYPES, require_policy, save_configuration
from covey.protocol.ids import Step
from covey.protocol.policy_record import TensorRow
from covey.runtime.files import sync
from covey.runtime.full_disk import ExplainFullDisk
from covey.shardcast.policy_export import OpenPreview, build_row, is_undamaged, write_weights
from trainer.algorithm.learner import Learner
from trainer.algorithm.lora import build_policy
from trainer.checkpoints.tensor_files import (
    list_parts,
    load_tensors,
    require_undamaged,
    require_whole,
    save_parts,
    write_digests,
)
from trainer.distributed.commands import RankCommand, Verb
from trainer.distributed.sharding import gather_weights

_MASTERS, _OPTIMIZER, _STATE = "masters", "optimizer", "state.json"
_EXPORTED, _FILE_DTYPE = "bfloat16", "BF16"


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Everything in a checkpoint except tensors."""

    step: Step
    """Step of the policy that the master weights represent."""
    updates: int
    """Number of optimizer updates so far."""
    report: dict[str, float]
    """Metrics of the step that led to this checkpoint. They are written to metrics.jsonl once the checkpoint is
    complete.

    Empty for the first step.
    """
    base_hash: str = ""
    """`Learner.base_hash`, because adapters fit only one model. Empty if the whole model is trained."""


class StepFolders:
    """A folder with one complete subfolder per kept step, for example `exports/7`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        for draft in root.glob(".*"):
            shutil.rmtree(draft)

    def list_steps(self) -> list[Step]:
        """Return the kept steps in ascending order."""
        return sorted(Step(int(path.name)) for path in self._root.iterdir() if path.name.isdecimal())

    def get_path(self, step: Step) -> Path:
        return self._root / str(step)

    def get_draft(self, step: Step) -> Path:
        """Return the folder that `add` fills before it is renamed."""
        return self._root / f".{step}"

    def add(self, step: Step, write: Callable[[Path], None]) -> Path:
        """Call `write` to fill a draft folder, then rename it to the folder of `step`. An existing folder is replaced.

        Raises OperatorError("disk_full") if the disk is full. The draft is then removed.
        """
        draft, target = self.get_draft(step), self.get_path(step)
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
        """Remove the folders of all steps for which `is_kept` returns False."""
        for step in self.list_steps():
            if not is_kept(step):
                self._remove(step)

    def _remove(self, step: Step) -> None:
        gone = self._root / f".gone-{step}"
        self.get_path(step).replace(gone)  # a partly removed folder must not look complete
        shutil.rmtree(gone)


class Checkpoints:
    """Checkpoints in one folder. A run resumes from the newest one."""

    def __init__(self, root: Path, *, keep: int, every: int = 1, last: int | None = None) -> None:
        """Every `every`-th step has a checkpoint, and so has the last step of the run if it has an end."""
        self._folders, self._keep, self._every, self._last = StepFolders(root), keep, every, last

    @property
    def newest(self) -> Step | None:
        """Step of the newest checkpoint. None if there is none."""
        return max(self._folders.list_steps(), default=None)

    def is_due(self, step: Step) -> bool:
        """Return whether `step` has a checkpoint."""
        return step % self._every == 0 or (self._last is not None and step >= self._last)

    def save(self, learner: Learner, step: Step, report: dict[str, float]) -> None:
        """Save everything that the next step depends on, and remove all except the newest `keep` checkpoints."""
        self.prepare(learner, step, report)()

    def prepare(self, learner: Learner, step: Step, report: dict[str, float]) -> Callable[[], None]:
        """Copy everything that the next step depends on. Return the function that writes it as `save` does.

        With several ranks each copies its shards now, and writes them when the function is called on rank 0.
        """
        state = State(step=step, updates=learner.updates, report=report, base_hash=learner.base_hash)
        draft = self._folders.get_draft(step)
        with learner.ranks.together(RankCommand(verb=Verb.SAVE, text=str(draft.resolve()))):
            write_shards = prepare_shards(learner, draft)
        tensors = _join(_list_tensors(learner))  # now, because FSDP frees gathered weights whenever it lists them

        def fill(folder: Path) -> None:
            (folder / _STATE).write_text(json.dumps(asdict(state), allow_nan=False))
            write_shards()
            if learner.ranks.is_shared:
                require_whole(tensors, folder)
            write_digests(folder)

        def write() -> None:
            self._folders.add(step, fill)
            kept = set(self._folders.list_steps()[-self._keep :])
            self._folders.retain(kept.__contains__)

        return write

    def restore(self, learner: Learner) -> State | None:
        """Restore the learner from the newest checkpoint. Returns None if there is none.

        Raises OperatorError("bad_checkpoint").
        """
        if (newest := self.newest) is None:
            return None
        folder = self._folders.get_path(newest)
        with learner.ranks.together(RankCommand(verb=Verb.RESTORE, text=str(folder.resolve()))):
            return load_state(learner, folder)


def prepare_shards(learner: Learner, folder: Path) -> Callable[[], None]:
    """Copy this rank's shards of master weights and moments. Return the function that writes them to `folder`.

    All ranks call both at the same time. The function may run in a thread while the learner goes on.
    """
    files = {
        file: {
            name: replace(part, values=learner.copies.copy(f"{file}/{name}", part.values))
            for name, part in list_parts(tensors).items()
        }
        for file, tensors in _list_tensors(learner).items()
    }
    learner.copies.finish()

    def write() -> None:
        with learner.ranks.write_together():
            save_parts(files, folder)

    return write


def _list_tensors(learner: Learner) -> dict[str, dict[str, Tensor]]:
    return {_MASTERS: learner.get_masters(), _OPTIMIZER: learner.get_optimizer_tensors()}


def _join(files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: tensor for tensors in files.values() for name, tensor in tensors.items()}


@torch.no_grad()
def load_state(learner: Learner, folder: Path) -> State:
    """Restore this rank's shards of the learner from `folder`. All ranks call this at the same time.

    Raises OperatorError("bad_checkpoint") if anything is damaged or does not fit. Nothing is changed in that case.
    """
    try:
        if learner.ranks.rank == 0:  # once for all ranks, because they share the folder
            require_undamaged(folder)
        state = State(**json.loads((folder / _STATE).read_bytes()))
        if state.base_hash != learner.base_hash:
            raise ValueError("the adapters in it were trained on different base weights or with a different lora.alpha")
        masters, moments = learner.build_tensors(state.updates)
        load_tensors(masters | moments, folder)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise OperatorError(
            "bad_checkpoint",
            f"the checkpoint {folder} does not match the model or the settings: {error}",
            fix="Resume with the model and settings of the checkpoint, or remove the folder to "
            "resume from an earlier one",
        ) from error
    for name, tensor in learner.get_masters().items():
        tensor.copy_(masters[name])
    learner.restore(moments, state.updates)
    return state


def export_policy(
    exports: StepFolders,
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    step: Step,
    *,
    require: Callable[[Path], None] | None = None,
    open_preview: OpenPreview = lambda _: None,
) -> Path:
    """Write the policy as workers receive it: bfloat16 weights, config and tokenizer. Returns its folder.

    The weights are hashed while they are written. Equal master weights produce equal bytes. `require` is called with
    the written draft. If it raises an error, an older folder of the same step stays as it is.
    """
    return prepare_export(exports, learner, tokenizer, step, require=require, open_preview=open_preview)()


def prepare_export(
    exports: StepFolders,
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    step: Step,
    *,
    require: Callable[[Path], None] | None = None,
    open_preview: OpenPreview = lambda _: None,
) -> Callable[[], Path]:
    """Copy the policy, and return the function that writes it as `export_policy` does. Adapters are merged.

    `open_preview` may serve the weights while they are written, as in `write_weights`.
    """
    with learner.ranks.together(RankCommand(verb=Verb.GATHER)):
        weights = gather_weights(build_policy(learner.model, DTYPES[_EXPORTED]), learner.copies)
    rows = [build_row(name, _FILE_DTYPE, tensor.shape) for name, tensor in weights.items()]

    def read(row: TensorRow) -> memoryview:
        tensor = weights[row.name].detach().to("cpu", DTYPES[_EXPORTED]).contiguous()
        return tensor.reshape(-1).view(torch.uint8).numpy().data

    def write(folder: Path) -> None:
        save_configuration(learner.model, tokenizer, folder, _EXPORTED)
        write_weights(folder, rows, read, threads=torch.get_num_threads(), open_preview=open_preview)
        if require is not None:
            require(folder)

    return lambda: exports.add(step, write)


def is_whole(exports: StepFolders, step: Step) -> bool:
    """Return whether the policy of `step` exists and is undamaged. Policies before the newest checkpoint cannot be
    exported again.
    """
    if step not in exports.list_steps():
        return False
    try:
        require_policy(exports.get_path(step))
    except (ProtocolError, OperatorError):
        return False
    return is_undamaged(exports.get_path(step))
