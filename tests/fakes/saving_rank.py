"""One of one or two ranks that write each step from copies while the next one runs, as on a GPU.

`main` runs in its own process, resumes from the newest checkpoint, and ends after the last step.
"""

import hashlib
import os
import threading
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from covey.model.policy_files import load_tokenizer
from covey.model.tiny import tiny_folder
from covey.protocol.ids import PoolId, Step
from covey.shardcast.policy_export import write_weights
from covey.standalone.beacons import Beacons
from tests.fakes.ranks import build_case
from tests.fakes.samples import build_batch, build_samples
from trainer.algorithm.learner import Learner
from trainer.checkpoints import checkpoint
from trainer.checkpoints.checkpoint import Checkpoints, StepFolders, export_policy
from trainer.checkpoints.journal import StepJournal
from trainer.checkpoints.resume import repeat_steps
from trainer.checkpoints.saver import Saver
from trainer.context import LearningContext
from trainer.distributed.commands import RankCommand, Verb
from trainer.distributed.host_copies import HostCopies
from trainer.distributed.ranks import ALONE, Ranks
from trainer.train_step import start_writing
from trainer.worker_rank import carry_out

STEPS = 6


def main(rank: int, size: int, folder: Path, life: int, every: int) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    ranks = ALONE if size == 1 else connect(rank, size, folder / f"rendezvous-{life}")
    with patch.object(HostCopies, "copy", HostCopies.keep):
        learner = build_case("tied", folder, ranks)
        if rank > 0:
            carry_out(ranks, learner, None)
            return
        train(learner, folder, every=every)
        with ranks.together(RankCommand(verb=Verb.STOP)):
            pass


def be_patient(rank: int, folder: Path) -> None:
    """Be one of two ranks that give a silent one a second, while the policy of step 1 takes three to write."""
    torch.set_num_threads(1)
    ranks = connect(rank, 2, folder / "rendezvous", patience=timedelta(seconds=1))

    def write_slowly(draft: Path, *args: Any, **how: Any) -> None:
        threading.Event().wait(3 if draft.name == ".1" else 0)
        write_weights(draft, *args, **how)

    learner = build_case("tied", folder, ranks)
    if rank > 0:
        carry_out(ranks, learner, None)
        return
    with patch.object(checkpoint, "write_weights", write_slowly):
        train(learner, folder, every=1, steps=1)
    with ranks.together(RankCommand(verb=Verb.STOP)):
        pass


def connect(rank: int, size: int, rendezvous: Path, *, patience: timedelta = timedelta(seconds=120)) -> Ranks:
    """Connect to the other ranks. While files are written, a rank that is silent for `patience` counts as lost."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    writers = dist.new_group(backend="gloo", timeout=patience)
    return Ranks(rank=rank, mesh=init_device_mesh("cpu", (size,)), writers=writers)


def train(learner: Learner, folder: Path, *, every: int, steps: int = STEPS) -> None:
    """Learn, copy and write as the trainer does, with a checkpoint every so many steps."""
    tokenizer = load_tokenizer(tiny_folder())
    checkpoints = Checkpoints(folder / "checkpoints", keep=2, every=every, last=steps)
    exports = StepFolders(folder / "exports")
    if (state := checkpoints.restore(learner)) is None:
        export_policy(exports, learner, tokenizer, Step(0))
        checkpoints.save(learner, Step(0), {})
    journal, first = StepJournal(folder / "journal"), Step(0) if state is None else state.step
    beacons, repeated = Beacons(folder / "beacons.jsonl", exports, PoolId(1)), journal.list_steps(first)
    beacons.get(Step(0))
    repeat_steps(
        repeated, learner, tokenizer, journal=journal, exports=exports, pool=PoolId(1), report={},
        find_published=beacons.find, is_kept=lambda _: True, advice="",
    )  # fmt: skip
    with closing(Saver()) as saver:
        parts = SimpleNamespace(
            learner=learner, tokenizer=tokenizer, exports=exports, checkpoints=checkpoints, journal=journal,
            saver=saver, timer=time.monotonic,
            note_export=lambda version, folder: beacons.get(version),
            open_preview=lambda version, weights: None,
        )  # fmt: skip
        for step in range(first + len(repeated), steps):
            batches = [build_batch(build_samples(5, step))]
            learner.learn(batches)
            start_writing(cast(LearningContext, parts), Step(step + 1), batches, {}, finish=lambda copied: None)


def read_policies(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the weights of each policy by step."""
    paths = (folder / "exports").glob("[0-9]*/model.safetensors")
    return {path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
