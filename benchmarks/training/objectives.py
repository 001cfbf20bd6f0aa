"""Objectives of the trainer: largest difference of loss and gradient to TRL, or to a float64 reference.

Each objective runs on a batch that enumerates combinations of log-probabilities and on random ones. The trainer's side
is its own path from accepted rollouts to the loss, in float64 and in two micro-batches. Where TRL has an objective, its
`GRPOTrainer` computes advantages, importance weights and loss. The reference is plain Python in
`benchmarks/training/objective_reference.py`.
"""

import argparse
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from benchmarks import isolated_process
from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.training import objective_reference
from benchmarks.training.objective_cases import (
    LONGEST,
    REFERENCE,
    SIBLINGS,
    TRL,
    Batch,
    build_batches,
    with_trl_deviation,
)
from benchmarks.training.objective_reference import ENTROPY
from covey.protocol.ids import GroupId, Step, TaskId
from covey.protocol.submission_file.rows import Rollout
from trainer.algorithm.batches import build_batch, build_samples
from trainer.algorithm.grpo import TokenSums, compute_loss
from trainer.algorithm.loss_settings import LossSettings
from trainer.data.samples import AcceptedWork, Sample

METRIC = "objective_difference"
BARS = {METRIC: Bar(most=1e-5)}

Result = tuple[float, list[float]]
"""Loss, and its derivative by each log-probability of the batch. Tokens without a loss have 0."""


def compute_ours(batch: Batch, settings: LossSettings) -> Result:
    """Return the trainer's loss and gradient."""
    rollouts = tuple(
        Rollout(
            group=GroupId(i // SIBLINGS), sibling=i % SIBLINGS, seed=i, prompt=(i,), tokens=(1,) * len(each.current),
            logprobs=each.sampler, proofs=(), finished=each.finished, reward=each.reward,
        )
        for i, each in enumerate(batch)
    )  # fmt: skip
    work = AcceptedWork(task=TaskId(0), policy_version=Step(0), replayed=True, rollouts=rollouts)
    update = build_batch(
        build_samples([work], group_size=SIBLINGS, loss=settings),
        normaliser=settings.normaliser,
        constant=LONGEST,
        keep_all=settings.needs_all_samples,
        mask_truncated=settings.mask_truncated_completions,
    )
    live = {i: torch.tensor(each.current, dtype=torch.float64).requires_grad_() for i, each in enumerate(batch)}
    pairs = list(zip(update.samples, update.weights, strict=True))
    middle = len(pairs) // 2
    parts = [_lose(batch, part, live, settings) for part in (pairs[:middle], pairs[middle:])]
    factor = sum(sums.weight for _, sums in parts) / sum(sums.kept_weight for _, sums in parts)
    total = factor * torch.stack([loss for loss, _ in parts]).sum()
    torch.autograd.backward(total)
    slopes = [torch.zeros_like(each) if each.grad is None else each.grad for each in live.values()]
    return total.item(), torch.cat(slopes).tolist()


def _lose(
    batch: Batch, pairs: Sequence[tuple[Sample, float]], live: Mapping[int, Tensor], settings: LossSettings
) -> tuple[Tensor, TokenSums]:
    """Return the loss of a micro-batch. The only token of a prompt is the number of its completion."""
    numbers = [sample.prompt[0] for sample, _ in pairs]
    sizes = torch.tensor([len(sample.tokens) for sample, _ in pairs])

    def spread(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).repeat_interleave(sizes)

    def join(name: str) -> Tensor:
        return torch.tensor([value for i in numbers for value in getattr(batch[i], name)], dtype=torch.float64)

    return compute_loss(
        logprobs=torch.cat([live[i] for i in numbers]),
        old=join("sampler"),
        proximal=join("start"),
        advantages=spread([sample.advantage for sample, _ in pairs]),
        weights=spread([weight for _, weight in pairs]),
        segments=torch.arange(len(pairs)).repeat_interleave(sizes),
        entropy=spread([ENTROPY] * len(pairs)),
        reference=join("reference"),
        settings=settings,
    )


def compute_reference(batch: Batch, settings: LossSettings) -> Result:
    """Return loss and gradient of the reference."""
    loss = objective_reference.compute_loss(batch, settings, [each.current for each in batch])
    return loss, objective_reference.compute_gradient(batch, settings)


def compare(ours: Sequence[Result], theirs: Sequence[Result]) -> tuple[float, float]:
    """Return the largest differences of losses and of derivatives over all batches."""
    losses, slopes = [], []
    for (loss, gradient), (expected, derivatives) in zip(ours, theirs, strict=True):
        losses.append(abs(loss - expected))
        slopes += [abs(a - b) for a, b in zip(gradient, derivatives, strict=True)]
    return max(losses), max(slopes)


def measure(name: str, ours: Sequence[Result], theirs: Sequence[Result], peer: str) -> Measurement:
    """Build the measurement of one objective: the larger of both differences."""
    n = sum(len(gradient) for _, gradient in ours)
    value = max(compare(ours, theirs))
    return Measurement(name=f"{METRIC}.{name}", value=value, unit="nats", n=n, peer=peer)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("make bench NAME=objectives", description=__doc__)
    parser.add_argument("--without-trl", action="store_true", help="compare with the reference only")
    options = parser.parse_args(arguments)
    batches, measurements = build_batches(), list[Measurement]()
    if not options.without_trl:
        cases = {name: with_trl_deviation(settings) for name, settings in TRL.items()}
        dumped = {name: settings.model_dump(mode="json") for name, settings in cases.items()}
        theirs = isolated_process.call("benchmarks.training.trl_objectives:compute_all", batches, dumped)
        for name, settings in cases.items():
            ours = [compute_ours(batch, settings) for batch in batches]
            measurements.append(measure(name, ours, theirs[name], "TRL 1.16"))
    for name, settings in REFERENCE.items():
        ours = [compute_ours(batch, settings) for batch in batches]
        expected = [compute_reference(batch, settings) for batch in batches]
        measurements.append(measure(name, ours, expected, "float64 reference"))
    measurements = set_bars(measurements, BARS)
    return finish("objectives", measurements, find_misses(measurements), arguments)
