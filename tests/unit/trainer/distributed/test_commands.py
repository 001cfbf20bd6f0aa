"""Commands as bytes: a decoded command equals the encoded one to the bit."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from tests.fakes.samples import build_batch, build_samples
from trainer.data.samples import Batch, Sample
from trainer.distributed.commands import RankCommand, Verb, decode_order, encode_order

pytestmark = pytest.mark.unit


@st.composite
def draw_samples(draw: st.DrawFn) -> Sample:
    count = draw(st.integers(1, 4))
    tokens = st.integers(0, 2**31 - 1)
    number = st.floats(allow_nan=False)
    column = st.none() | st.lists(number, min_size=count, max_size=count).map(tuple)
    return Sample(
        id=RolloutId(task=TaskId(draw(st.integers(0, 2**63 - 1))), group=GroupId(draw(st.integers(0, 99))), sibling=3),
        policy_version=Step(draw(st.integers(0, 10**6))),
        prompt=tuple(draw(st.lists(tokens, min_size=1, max_size=5))),
        tokens=tuple(draw(st.lists(tokens, min_size=count, max_size=count))),
        reward=draw(number),
        advantage=draw(number),
        old=draw(column),
        proximal=draw(column),
        reference=draw(column),
        audited=draw(st.booleans()),
    )


@given(st.lists(st.lists(draw_samples(), max_size=4), max_size=3), st.text())
@settings(max_examples=60, deadline=None)
def test_decode_order__any_batches__equal_the_encoded_ones(drawn: list[list[Sample]], text: str) -> None:
    rng = random.Random(0)
    batches = tuple(
        Batch(samples=tuple(samples), weights=tuple(rng.random() for _ in samples), tokens=rng.randrange(10**12))
        for samples in drawn
    )
    order = RankCommand(verb=Verb.LEARN, text=text, batches=batches)
    assert decode_order(encode_order(order)) == order


@pytest.mark.parametrize("verb", list(Verb))
def test_decode_order__each_verb__is_decoded(verb: Verb) -> None:
    assert decode_order(encode_order(RankCommand(verb=verb, text="/a/.7"))) == RankCommand(verb=verb, text="/a/.7")


def test_decode_order__some_samples_without_logprobs__each_keeps_its_own() -> None:
    samples = [replace(s, old=None) if i % 2 else replace(s, reference=None) for i, s in enumerate(build_samples(5))]
    order = RankCommand(verb=Verb.RECOMPUTE, batches=(build_batch(samples),))
    assert decode_order(encode_order(order)) == order
