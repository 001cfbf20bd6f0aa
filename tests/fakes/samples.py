"""Batches of random sequences of different lengths, and a learner for them."""

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from trainer.algorithm.forward import PackingConfig
from trainer.algorithm.learner import Learner, Optimiser
from trainer.algorithm.loss_settings import LossSettings
from trainer.data.packing import MicroBatch
from trainer.data.samples import Batch, Sample

OPTIMISER = Optimiser(learning_rate=1e-3, betas=(0.9, 0.99), epsilon=1e-8, weight_decay=0.1, warm_up=0, clip=1e9)
TWO_SIDED = LossSettings(importance_sampling_mode="none")
REGULARISED = LossSettings(importance_sampling_mode="none", beta=0.05, entropy_coef=0.02)
DECOUPLED = LossSettings(beta=0.05, entropy_coef=0.02)
SHAPE = PackingConfig(seq_len=64, micro_batch_size=2, compute_dtype="float32")


def change(settings: LossSettings, **values: Any) -> LossSettings:
    """Return settings with other values."""
    return LossSettings.model_validate(settings.model_dump() | values)


def build_learner(
    base: PreTrainedModel,
    *,
    optimiser: Optimiser = OPTIMISER,
    objective: LossSettings = TWO_SIDED,
    shape: PackingConfig = SHAPE,
) -> Learner:
    return Learner(copy.deepcopy(base), optimiser=optimiser, objective=objective, shape=shape)


def build_samples(n: int = 9, seed: int = 0) -> list[Sample]:
    """Build samples, two thirds of which have the prompt of the one before.

    Log-probabilities are around those of a uniform model, so that clipping happens.
    """
    rng = random.Random(seed)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, 259) for _ in range(count))

    samples: list[Sample] = []
    for i in range(n):
        prompt = samples[-1].prompt if i % 3 else draw(rng.randrange(1, 30))
        tokens = draw(rng.randrange(1, 20))
        old, proximal, reference = (
            tuple(rng.uniform(low, high) for _ in tokens) for low, high in ((-12, -2), (-9, -3), (-9, -3))
        )
        samples.append(
            Sample(
                id=RolloutId(task=TaskId(0), group=GroupId(0), sibling=i),
                policy_version=Step(0),
                prompt=prompt,
                tokens=tokens,
                reward=0.0,
                advantage=rng.uniform(-2, 2),
                old=old,
                proximal=proximal,
                reference=reference,
            )
        )
    return samples


def build_batch(samples: list[Sample]) -> Batch:
    """Build a batch with the normaliser `tokens`."""
    tokens = sum(len(sample.tokens) for sample in samples)
    return Batch(samples=tuple(samples), weights=(1 / tokens,) * len(samples), tokens=tokens)


def give_proximal(batch: Batch, values: list[tuple[float, ...]] | None) -> Batch:
    """Return the batch with these log-probabilities under the starting policy, or with none."""
    proximal: Sequence[tuple[float, ...] | None] = values or [None] * len(batch.samples)
    pairs = zip(batch.samples, proximal, strict=True)
    return replace(batch, samples=tuple(replace(sample, proximal=each) for sample, each in pairs))


def forget_old(batch: Batch) -> Batch:
    """Return the batch without log-probabilities under the policy that sampled."""
    return replace(batch, samples=tuple(replace(sample, old=None) for sample in batch.samples))


def nest(samples: Sequence[Sample], rows: Sequence[Sequence[int]], *, is_shared: bool) -> MicroBatch:
    """Return the families of rows of samples. With `is_shared`, neighbors in a row with equal prompts are a family."""
    families: MicroBatch = []
    for row in rows:
        for place, i in enumerate(row):
            if is_shared and place and samples[row[place - 1]].prompt == samples[i].prompt:
                families[-1] += (i,)
            else:
                families.append((i,))
    return families
