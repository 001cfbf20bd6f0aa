"""Claims within and beyond the differences of replayed work, and liars."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.samples import build_batch, build_samples
from trainer.algorithm.claims import bound_claims, find_bound
from trainer.data.samples import Batch, Sample

pytestmark = pytest.mark.unit


def build(claims: list[float], own: list[float], *, audited: bool = False) -> Sample:
    sample = build_samples(1)[0]
    return replace(sample, tokens=(5,) * len(claims), old=tuple(claims), proximal=tuple(own), audited=audited)


def bound(*samples: Sample) -> tuple[list[tuple[float, ...] | None], float]:
    batches, share = bound_claims([build_batch(list(samples))])
    return [sample.old for sample in batches[0].samples], share


AUDITED = build([-1.0, -2.0], [-1.25, -1.5], audited=True)


def test_find_bound__replayed_samples_only__is_their_largest_difference() -> None:
    assert find_bound([AUDITED, build([-1.0], [-9.0])]) == 0.5
    assert find_bound([build([-1.0], [-9.0])]) == 0


def test_bound_claims__claims_beyond_the_bound__become_the_trainers_values() -> None:
    claims, share = bound(AUDITED, build([-1.0, -1.0, -1.0], [-1.5, -1.625, -0.25]))
    assert claims == [(-1.0, -2.0), (-1.0, -1.625, -0.25)]
    assert share == pytest.approx(2 / 5)


def test_bound_claims__nothing_was_replayed__uses_no_claim_that_differs() -> None:
    claims, share = bound(build([-1.0, -2.0], [-1.0, -2.5]))
    assert (claims, share) == ([(-1.0, -2.5)], 0.5)


@pytest.mark.parametrize("lie", [math.nan, -math.inf, math.inf, 0.0])
def test_bound_claims__lie__is_not_used(lie: float) -> None:
    claims, _ = bound(AUDITED, build([lie], [-3.0]))
    assert claims[1] == (-3.0,)


def test_bound_claims__several_batches__share_the_bound_of_the_step() -> None:
    first, second = build_batch([AUDITED]), build_batch([build([-1.0], [-1.5])])
    batches, share = bound_claims([first, second])
    assert ([batch.samples[0].old for batch in batches], share) == ([(-1.0, -2.0), (-1.0,)], 0)


@given(st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0), st.booleans()), max_size=8))
def test_bound_claims__any_claims__differ_by_no_more_than_replayed_ones(rows: list[tuple[float, float, bool]]) -> None:
    samples = [build([claim], [own], audited=audited) for claim, own, audited in rows]
    most = find_bound(samples)
    batches, _ = bound_claims([Batch(samples=tuple(samples), weights=(1.0,) * len(samples), tokens=len(samples))])
    for before, after in zip(samples, batches[0].samples, strict=True):
        assert after.old is not None
        assert after.proximal is not None
        assert abs(after.old[0] - after.proximal[0]) <= most
        assert not before.audited or after == before
