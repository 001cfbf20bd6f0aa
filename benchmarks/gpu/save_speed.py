"""What a step costs besides its update: copies to main memory, the write that runs meanwhile, and an engine's load.

The learner is 0.6B with its float32 masters and moments, 7 GB of checkpoint and 1.2 GB of policy.
"""

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file

from benchmarks.gpu.random_models import SMALL, TINY_VOCABULARY, VOCABULARY, build_model
from benchmarks.gpu.section_run import SectionRun
from benchmarks.measurement import Bar
from benchmarks.training.utilisation import OBJECTIVE, OPTIMISER, draw_batch
from covey.engines.hf.engine import HuggingFaceEngine
from covey.model.policy_files import get_weights
from covey.model.tiny import build_tokenizer
from covey.protocol.ids import Step
from covey.protocol.policy_record import WEIGHTS_FILE
from trainer.algorithm.forward import PackingConfig
from trainer.algorithm.learner import Learner
from trainer.algorithm.lora import build_policy
from trainer.checkpoints.checkpoint import Checkpoints, StepFolders, prepare_export
from trainer.checkpoints.saver import Saver
from trainer.distributed.sharding import gather_weights

SAMPLES = 8
LENGTH = 2048
"""Tokens of a sample that go into the model."""
STEPS = 6
"""Maximum number of updates that are timed during a write."""


def measure(run: SectionRun) -> None:
    """Measure the section."""
    with tempfile.TemporaryDirectory(prefix="covey-gpu-") as folder:
        measure_learner(run, Path(folder))
        run.attempt("load of a policy", lambda: measure_load(run, Path(folder)), seconds=15)


def measure_learner(run: SectionRun, folder: Path) -> None:
    """Measure what needs a learner."""
    shape = PackingConfig(seq_len=SAMPLES * LENGTH, micro_batch_size=1, compute_dtype="bfloat16")
    learner = Learner(build_model(run, SMALL), optimiser=OPTIMISER, objective=OBJECTIVE, shape=shape)
    run.attempt("gather to main memory", lambda: measure_gather(run, learner), seconds=10)
    run.attempt("update while saving", lambda: measure_saving(run, learner, folder), seconds=40)


def measure_gather(run: SectionRun, learner: Learner) -> None:
    """Record the rate at which the weights come to main memory in bfloat16, and that of pageable copies."""
    weights = get_weights(learner.model)
    size = sum(each.numel() for each in weights.values()) * torch.bfloat16.itemsize / 1e9
    ours = run.time(lambda: gather_weights(build_policy(learner.model, torch.bfloat16), learner.copies))
    peer = run.time(lambda: [each.detach().to(torch.bfloat16).to("cpu") for each in weights.values()])
    run.record(
        "gather to main memory", size / median(ours), "GB/s", n=len(ours), peer="pageable copies",
        peer_value=size / median(peer), aim=Bar(least=8.0), is_value_aimed=True, memory_gb=run.read_peak_gb(),
    )  # fmt: skip


def measure_saving(run: SectionRun, learner: Learner, folder: Path) -> None:
    """Record the time of an update while the step before is written, and how long the copies for a write take."""
    vocabulary, fed, prompt = run.pick(VOCABULARY, TINY_VOCABULARY), run.pick(LENGTH, 32), run.pick(256, 8)
    batch = draw_batch([fed - prompt + 1] * SAMPLES, prompt=prompt, vocabulary=vocabulary)
    exports, checkpoints = StepFolders(folder / "exports"), Checkpoints(folder / "checkpoints", keep=1)

    def update() -> None:
        learner.learn([batch])

    def prepare(step: int) -> Callable[[], None]:
        write_policy = prepare_export(exports, learner, build_tokenizer(), Step(step))
        write_checkpoint = checkpoints.prepare(learner, Step(step), {})

        def write() -> None:
            write_policy()
            write_checkpoint()

        return write

    alone = run.time(update)
    write = run.time(prepare(0), repeats=1, is_warm=True)  # its buffers are allocated here
    update()
    writes: list[Callable[[], None]] = []
    copies = run.time(lambda: writes.append(prepare(1)), repeats=1, is_warm=True)
    during = time_during(run, learner, update, writes[0])
    memory = run.read_peak_gb()
    run.record_times(
        "update while saving", during, alone, "ms", peer="without saving", aim=Bar(most=1.05), memory_gb=memory
    )
    run.record_times("copies before the next update", copies, write, "s", peer="the write", memory_gb=memory)


def time_during(
    run: SectionRun, learner: Learner, update: Callable[[], None], write: Callable[[], None]
) -> list[float]:
    """Return the seconds of the updates that begin before the write has ended, at least one.

    Where nothing is copied, the write ends first, as in the trainer.
    """
    saver, has_ended, seconds = Saver(), threading.Event(), list[float]()

    def save() -> None:
        write()
        has_ended.set()

    saver.start(save)
    try:
        if not learner.is_saved_apart:
            saver.wait()
        while not seconds or (not has_ended.is_set() and len(seconds) < STEPS):
            seconds += run.time(update, repeats=1, is_warm=True)
    finally:
        saver.close()
    return seconds


def measure_load(run: SectionRun, folder: Path) -> None:
    """Record for how long a new policy keeps a live engine from generating."""
    policies = [folder / "exports" / str(step) for step in (0, 1)]
    engine = HuggingFaceEngine(dtype="bfloat16", device=run.device)
    engine.load_policy(policies[0], 0)
    pauses = []
    for version in range(1, 4):
        engine.load_policy(policies[version % 2], version)
        pauses.append(engine.load_pause)
    memory = run.read_peak_gb()
    peer = run.time(lambda: load_file(policies[0] / WEIGHTS_FILE, device=run.device))
    run.record_times(
        "load of a policy", pauses, peer, "s", peer="safetensors", aim=Bar(most=0.5), is_value_aimed=True,
        memory_gb=memory,
    )  # fmt: skip
