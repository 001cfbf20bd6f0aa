"""Bounds of the log-probabilities that workers claim, for the setting `old_policy = "claimed"`.

A replay has confirmed the claims of some samples. Their differences to the trainer's own values show how far stale
policies and another engine move a log-probability. A claim without a replay that lies further away is not explained by
them, so the trainer's own value replaces it. The audit finds and punishes workers that claim wrong values.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from trainer.data.samples import Batch, Sample


def find_bound(samples: Sequence[Sample]) -> float:
    """Return the largest |claim - own value| of a token in replayed samples, in nats. 0 if there is none."""
    audited = [sample for sample in samples if sample.audited]
    pairs = chain.from_iterable(zip(s.old or (), s.proximal or (), strict=True) for s in audited)
    return max((abs(claim - own) for claim, own in pairs), default=0.0)


def bound_claims(batches: Sequence[Batch]) -> tuple[list[Batch], float]:
    """Replace claims that differ from `proximal` by more than those of replayed samples. All batches are one step's.

    The samples have claims as `old` and the trainer's own values as `proximal`. The second value is the share of tokens
    whose claim was replaced.
    """
    bound = find_bound([sample for batch in batches for sample in batch.samples])
    bounded, tokens, replaced = [], 0, 0
    for batch in batches:
        samples = []
        for sample in batch.samples:
            claims, own = sample.old or (), sample.proximal or ()
            kept = claims
            if not sample.audited:  # a NaN is not within the bound
                kept = tuple(c if abs(c - p) <= bound else p for c, p in zip(claims, own, strict=True))
            tokens += len(claims)
            replaced += sum(claim is not value for claim, value in zip(claims, kept, strict=True))
            samples.append(replace(sample, old=kept))
        bounded.append(replace(batch, samples=tuple(samples)))
    return bounded, replaced / max(1, tokens)
