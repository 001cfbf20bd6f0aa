"""Updates of the learner in bfloat16 against the peer of `update_peer`: time, share of the GPU's peak, and memory.

Operations are counted as `trainer.monitoring.performance` counts them.  The peer computes a shared prompt once for each
sibling.
"""

from dataclasses import dataclass

from benchmarks.gpu.gradient_check import check_gradients
from benchmarks.gpu.random_models import LARGE, SMALL, TINY_VOCABULARY, VOCABULARY, build_model
from benchmarks.gpu.section_run import SectionRun
from benchmarks.gpu.update_peer import UpdatePeer
from benchmarks.measurement import Bar
from benchmarks.training.utilisation import OBJECTIVE, OPTIMISER, draw_batch, find_peak_flops
from trainer.algorithm.forward import PackingConfig, recompute_activations
from trainer.algorithm.learner import Learner
from trainer.data.samples import Batch
from trainer.monitoring.performance import compute_flops, measure_model

PEER = "transformers"
SHRINK = 64
"""Divisor of all lengths where sizes are tiny."""
TINY_PEAK = 1e11
"""Operations per second that stand for the peak of a CPU, where their share means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCase:
    """One update.  Example: UpdateCase(name="0.6B, 16 of 1k", shape=SMALL, samples=16, prompt=256, fed=1024)."""

    name: str
    """Name of the row."""
    shape: str
    """Shape of the model."""
    samples: int
    """Number of samples."""
    prompt: int
    """Number of tokens of a prompt."""
    fed: int
    """Number of tokens of a sample that go into the model, with its prompt."""
    row: int
    """Number of tokens of a packed row."""
    siblings: int = 1
    """Number of samples with the same prompt."""
    is_recomputed: bool = False
    """Whether layers are computed again to save memory, on both sides."""
    updates: int = 3
    """Number of timed updates of each side."""
    seconds: float = 12.0
    """About what the case takes on an H100."""


CASES = (
    UpdateCase(name="0.6B, 16 of 1k", shape=SMALL, samples=16, prompt=256, fed=1024, row=16_384),
    UpdateCase(name="0.6B, 1 of 16k", shape=SMALL, samples=1, prompt=256, fed=16_384, row=16_384),
    UpdateCase(
        name="0.6B, 8 siblings of 2k, short prompt", shape=SMALL, samples=8, prompt=256, fed=2048, row=16_384,
        siblings=8,
    ),
    UpdateCase(
        name="0.6B, 8 siblings of 2k, long prompt", shape=SMALL, samples=8, prompt=1536, fed=2048, row=16_384,
        siblings=8,
    ),
    UpdateCase(
        name="1.5B, 1 of 16k, recompute", shape=LARGE, samples=1, prompt=256, fed=16_384, row=16_384,
        is_recomputed=True, seconds=15,
    ),
    UpdateCase(
        name="0.6B, 1 of 64k, recompute", shape=SMALL, samples=1, prompt=256, fed=65_536, row=65_536,
        is_recomputed=True, updates=1, seconds=35,
    ),
)  # fmt: skip
"""Updates in the order in which they are measured, the longest last."""


def measure(run: SectionRun) -> None:
    """Measure the section."""
    run.attempt("gradient", lambda: check_gradients(run), seconds=10)
    for case in CASES:
        run.attempt(case.name, lambda case=case: measure_update(run, case), seconds=case.seconds)  # type: ignore[misc]


def build_batch(run: SectionRun, case: UpdateCase) -> Batch:
    """Build the samples of a case."""
    prompt, fed = (length // run.pick(1, SHRINK) for length in (case.prompt, case.fed))
    vocabulary = run.pick(VOCABULARY, TINY_VOCABULARY)
    return draw_batch([fed - prompt + 1] * case.samples, prompt=prompt, vocabulary=vocabulary, siblings=case.siblings)


def measure_update(run: SectionRun, case: UpdateCase) -> None:
    """Record the time of an update on both sides, and our share of the peak operations."""
    batch = build_batch(run, case)
    seconds, flops = time_learner(run, case, batch)
    memory = run.read_peak_gb()
    run.clear_memory()
    peer_seconds, note = run.guard(lambda: time_peer(run, case, batch))
    peer_memory = run.read_peak_gb()
    run.record_times(
        case.name, seconds, peer_seconds or [], "ms", peer=PEER, aim=Bar(most=1.0), memory_gb=memory,
        note=note or (f"peer {peer_memory:.1f} GB" if peer_memory is not None else ""),
    )  # fmt: skip
    peak = get_peak_flops(run)
    if peak is not None:
        shares = [flops / peak / each for each in sorted(seconds)]
        aim = Bar(least=0.32) if case.siblings == 1 else None
        run.record(f"{case.name}, MFU", shares[len(shares) // 2], "", n=len(shares), aim=aim, is_value_aimed=True)


def time_learner(run: SectionRun, case: UpdateCase, batch: Batch) -> tuple[list[float], float]:
    """Return the seconds of the learner's updates, and the operations of one."""
    model = build_model(run, case.shape)
    if case.is_recomputed:
        recompute_activations(model)
    shape = PackingConfig(seq_len=case.row // run.pick(1, SHRINK), micro_batch_size=1, compute_dtype="bfloat16")
    learner = Learner(model, optimiser=OPTIMISER, objective=OBJECTIVE, shape=shape)
    predictions = sum(len(sample.tokens) for sample in batch.samples)
    flops = compute_flops(learner.find_families(batch), measure_model(model), predictions=predictions)
    return run.time(lambda: learner.learn([batch]), repeats=case.updates), flops


def time_peer(run: SectionRun, case: UpdateCase, batch: Batch) -> list[float]:
    """Return the seconds of the peer's updates."""
    model = build_model(run, case.shape)
    if case.is_recomputed:
        recompute_activations(model)
    peer = UpdatePeer(model, batch)
    return run.time(peer.update, repeats=case.updates)


def get_peak_flops(run: SectionRun) -> float | None:
    """Return the peak operations per second of the device.  None if they are not known."""
    if run.device == "cpu":
        return TINY_PEAK
    found, _ = run.guard(lambda: find_peak_flops(run.device))
    return found
