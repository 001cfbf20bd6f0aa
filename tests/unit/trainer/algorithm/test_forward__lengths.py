"""Rows of up to 65,536 tokens: settings, files, commands, trees and an update accept them.

COVEY_FULL=1 runs the update with 65,536 tokens instead of 16,384, because its time grows with their square.
"""

import os
import random
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from covey.protocol.ids import GroupId
from covey.protocol.params import EnvironmentParams, ModelParams, PoolParams
from covey.protocol.submission_file.codec import decode, encode
from covey.protocol.submission_file.rows import Rollout
from tests.fakes.samples import OPTIMISER, build_batch, build_samples
from trainer.algorithm.forward import PackingConfig, find_families
from trainer.algorithm.learner import Learner
from trainer.algorithm.loss_settings import LossSettings
from trainer.algorithm.tree_attention import build_families
from trainer.config import ModelSection
from trainer.data.packing import build_rows
from trainer.data.samples import Sample
from trainer.distributed.commands import RankCommand, Verb, decode_order, encode_order

pytestmark = pytest.mark.unit
LONG, PROMPT = 1 << 16, 36
UPDATE = LONG if os.environ.get("COVEY_FULL") == "1" else 1 << 14
VOCABULARY = 64


def draw_tokens(count: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(VOCABULARY), k=count))


def build_sample(fed: int, *, prompt: int = PROMPT, seed: int = 0) -> Sample:
    """Build a sample of which `fed` tokens are fed to the model."""
    (sample,) = build_samples(1)
    tokens = draw_tokens(fed - prompt + 1, seed)
    return replace(sample, prompt=draw_tokens(prompt, 9), tokens=tokens, old=None, proximal=None, reference=None)


def build_learner(fed: int) -> Learner:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, max_position_embeddings=LONG, tie_word_embeddings=False, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    shape = PackingConfig(seq_len=fed, micro_batch_size=1, compute_dtype="float32")
    model = LlamaForCausalLM(config).train(False)
    return Learner(model, optimiser=OPTIMISER, objective=LossSettings(), shape=shape)


def test_settings__long_rows__are_accepted() -> None:
    assert ModelSection(seq_len=LONG).choose_seq_len(LONG) == LONG


def test_submission_file__long_completion__is_read_as_it_was_written() -> None:
    model = ModelParams(max_prompt_tokens=PROMPT, max_completion_tokens=LONG - PROMPT)
    params = PoolParams(
        name="long", environment=EnvironmentParams(kind="x"), model=model, group_size=2, groups_per_step=1,
        groups_per_task=1, max_submission_bytes=1 << 24,
    )  # fmt: skip
    tokens = draw_tokens(LONG - PROMPT, 1)
    rows = [
        Rollout(
            group=GroupId(0), sibling=i, seed=i, prompt=draw_tokens(PROMPT, 9), tokens=tokens,
            logprobs=(-1.5,) * len(tokens), proofs=(), finished=True, reward=1.0,
        )
        for i in range(2)
    ]  # fmt: skip
    assert list(decode(encode(rows), params.build_budget())) == rows


def test_command__long_sample__reaches_other_ranks_as_it_is() -> None:
    order = RankCommand(verb=Verb.LEARN, batches=(build_batch([build_sample(LONG)]),))
    assert decode_order(encode_order(order)) == order


def test_build_rows__several_long_samples__have_families_of_their_own() -> None:
    """The last index is above 2^17, and each family has all positions from 0 to 65,535."""
    samples = [build_sample(LONG, seed=seed) for seed in range(3)]
    rows = build_rows(samples, [1.0] * 3, [(0,), (1,), (2,)])
    assert torch.equal(rows.positions, torch.arange(LONG).repeat(3))
    assert torch.equal(rows.ends, (torch.arange(3 * LONG) // LONG + 1) * LONG)
    assert int(rows.places[-1]) == 3 * LONG - 1
    families = build_families(rows.ends, device=torch.device("cpu"), has_lines=True)
    assert families.lines is not None
    assert families.lines.borders.tolist() == [0, LONG, 2 * LONG, 3 * LONG]


def test_find_families__siblings_with_a_long_prompt__share_it_only_up_to_the_size_of_a_mask() -> None:
    """Sharing 20,000 tokens is worth a mask, and the mask of a tree of more than 32,768 would take gigabytes."""
    learner = build_learner(LONG)
    for prompt, expected in ((20_000, [(0, 1)]), (40_000, [(0,), (1,)])):
        samples = [build_sample(prompt + 8, prompt=prompt, seed=seed) for seed in range(2)]
        families = find_families(learner.model, samples, learner._shape)
        assert sorted(tuple(sorted(family.samples)) for family in families) == expected


def test_learn__long_row__updates_every_weight() -> None:
    learner = build_learner(UPDATE)
    before = {name: each.detach().clone() for name, each in learner.model.named_parameters()}
    (metrics,) = learner.learn([build_batch([replace(build_sample(UPDATE), advantage=1.0)])])
    assert metrics.trained_tokens == UPDATE - PROMPT + 1
    assert 0 < metrics.gradient_norm < float("inf")
    assert metrics.entropy == pytest.approx(4.158, abs=0.02)  # ln 64, because the weights are still small
    assert all(not torch.equal(before[name], each) for name, each in learner.model.named_parameters())
