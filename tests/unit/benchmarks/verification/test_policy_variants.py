"""Variants of a policy: quantised and perturbed weights by hand, training, and the text that it learns from."""

from pathlib import Path

import pytest
import torch

from benchmarks.verification import policy_variants
from benchmarks.verification.policy_variants import Pretrainer, build_model, build_wide, get_paragraphs, train

pytestmark = pytest.mark.unit


def test_round_to_int8__rows__have_127_steps_each_way_of_their_own_scale() -> None:
    weight = torch.tensor([[1.27, 0.014, -0.5], [12.7, 0.1, -0.04]])
    torch.testing.assert_close(
        policy_variants.round_to_int8(weight), torch.tensor([[1.27, 0.01, -0.5], [12.7, 0.1, 0.0]]), atol=1e-6, rtol=0
    )


def test_round_to_int4__groups_of_32__have_seven_steps_each_way_of_their_own_scale() -> None:
    weight = torch.zeros(1, 64)
    weight[0, :3] = torch.tensor([0.7, 0.34, -0.04])
    weight[0, 32:34] = torch.tensor([7.0, 0.7])
    quantised = policy_variants.round_to_int4(weight)
    torch.testing.assert_close(quantised[0, :3], torch.tensor([0.7, 0.3, 0.0]), atol=1e-6, rtol=0)
    torch.testing.assert_close(quantised[0, 32:34], torch.tensor([7.0, 1.0]), atol=1e-6, rtol=0)


def test_perturb__weights__change_by_about_one_percent_and_equally_each_time() -> None:
    weight = torch.ones(100, 100)
    changed = policy_variants.perturb(weight)
    assert (changed - weight).std() == pytest.approx(0.01, rel=0.05)
    assert torch.equal(changed, policy_variants.perturb(weight))


def test_build_variant__a_model__changes_matrices_of_a_copy_alone() -> None:
    model = build_model("llama", 1, hidden=16, layers=1)
    other = policy_variants.build_variant(model, torch.zeros_like)
    assert other.lm_head.weight.abs().max() == 0 < model.lm_head.weight.abs().max()
    assert torch.equal(other.model.norm.weight, model.model.norm.weight)
    layers = policy_variants.build_variant(model, torch.zeros_like, is_changed=lambda name: ".layers." in name)
    assert torch.equal(layers.lm_head.weight, model.lm_head.weight)
    assert layers.model.layers[0].mlp.up_proj.weight.abs().max() == 0


@pytest.mark.parametrize(("architecture", "is_tied"), [("qwen2", True), ("llama", False)])
def test_build_model__architecture__decides_whether_head_and_embedding_are_tied(
    architecture: str, is_tied: bool
) -> None:
    model = build_model(architecture, 1, hidden=16, layers=1)
    assert (model.lm_head.weight is model.get_input_embeddings().weight) is is_tied


def test_build_model__default_size__has_a_million_parameters() -> None:
    assert 0.8e6 < build_model("qwen2", 1).num_parameters() < 1.2e6


def test_step__one_batch__changes_the_weights_and_equal_seeds_learn_alike() -> None:
    losses, weights = [], []
    for _ in range(2):
        pretrainer = Pretrainer(build_model("qwen2", 1, hidden=16, layers=1), 7)
        losses.append([pretrainer.step(1e-3) for _ in range(2)])
        weights.append(pretrainer.model.lm_head.weight.detach().clone())
    assert losses[0] == losses[1]
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], build_model("qwen2", 1, hidden=16, layers=1).lm_head.weight)


def test_train__some_steps__lower_the_loss() -> None:
    pretrainer = train(build_model("qwen2", 1, hidden=16, layers=1), 1, 8)
    assert pretrainer.step(0.0) < 5.5  # a uniform guess among 259 tokens has 5.56


def test_get_paragraphs__language_reference__are_prose_of_some_length() -> None:
    paragraphs = get_paragraphs()
    assert len(paragraphs) > 500
    assert all(len(each) > 40 for each in paragraphs)
    assert not any("+----" in each for each in paragraphs)


def test_build_wide__second_call__returns_the_kept_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_variants, "ROOT", tmp_path)
    folder = build_wide(300)
    marker = folder / "marker"
    marker.touch()
    assert build_wide(300) == folder
    assert marker.exists()
