"""Adapters are trained next to frozen weights, published merged and restored from a checkpoint."""

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from covey.errors import OperatorError
from covey.model.policy_files import get_weights, load_model, load_tokenizer
from covey.model.tiny import tiny_folder
from covey.model.weight_files import load_weights
from covey.protocol.ids import Step
from tests.fakes.samples import SHAPE, build_batch, build_learner, build_samples
from trainer.algorithm.forward import recompute_activations
from trainer.algorithm.learner import Learner
from trainer.algorithm.lora import add_adapters, build_policy, fill_adapters
from trainer.checkpoints.checkpoint import Checkpoints, StepFolders, export_policy
from trainer.factories import build_learner as build_from_settings

pytestmark = pytest.mark.unit
LAYERS = 2 * 7
"""The tiny model has two layers, each with four matrices of attention and three of the MLP."""


def build_adapted(rank: int = 4, alpha: float = 8.0, targets: tuple[str, ...] = (), seed: int = 0) -> PreTrainedModel:
    model = load_model(tiny_folder(), "float32")
    adapt(model, rank=rank, alpha=alpha, targets=targets, seed=seed)
    return model


def adapt(model: PreTrainedModel, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> None:
    add_adapters(model, **({"rank": 4, "alpha": 16.0, "targets": ()} | changes), dtype=dtype)
    fill_adapters(model, seed)


def merge(model: PreTrainedModel, base: PreTrainedModel) -> PreTrainedModel:
    """Return the base model with the weights of the policy of a model with adapters."""
    merged = copy.deepcopy(base)
    weights = dict(build_policy(model, torch.float32))
    assert sorted(get_weights(merged)) == list(weights)
    merged.load_state_dict(weights, strict=False)
    return merged


def teach(learner: Learner, *seeds: int) -> None:
    for seed in seeds:
        learner.update(build_batch(build_samples(3, seed=seed)))


def read_policy(learner: Learner, folder: Path, step: int = 0) -> bytes:
    exports = StepFolders(folder)
    return (
        export_policy(exports, learner, load_tokenizer(tiny_folder()), Step(step)) / "model.safetensors"
    ).read_bytes()


def test_add_adapters__before_learning__policy_has_the_base_models_weights(tmp_path: Path) -> None:
    policy = load(read_policy(build_learner(build_adapted()), tmp_path))
    base = load_file(tiny_folder() / "model.safetensors")
    assert policy.keys() == base.keys()
    assert all(torch.equal(policy[name], base[name]) for name in base)


def test_update__adapters__learn_alone() -> None:
    model = build_adapted()
    learner = build_learner(model)
    teach(learner, 0, 1)
    before, moved = dict(model.named_parameters()), set()
    for name, parameter in learner.model.named_parameters():
        assert parameter.dtype is torch.float32
        if not torch.equal(parameter, before[name]):
            moved.add(name)
    assert moved == {name for name in before if ".lora_" in name}
    assert len(moved) == 2 * LAYERS
    assert len(learner.get_optimizer_tensors()) == 2 * len(moved)


def test_add_adapters__named_targets__no_other_layer_learns() -> None:
    names = {name for name, each in build_adapted(targets=("q_proj",)).named_parameters() if each.requires_grad}
    assert names == {f"model.layers.{i}.self_attn.q_proj.lora_{which}.default.weight" for i in (0, 1) for which in "AB"}


def test_merge_adapters__after_learning__is_w_plus_scaled_b_a_and_computes_the_same() -> None:
    learner = build_learner(build_adapted(rank=4, alpha=8.0))
    teach(learner, 0, 1)
    base = load_model(tiny_folder(), "float32")
    model, merged = learner.model, merge(learner.model, base)
    layer = model.get_submodule("model.layers.1.mlp.up_proj")
    b, a = (layer.get_submodule(f"lora_{which}.default").weight for which in "BA")
    expected = layer.get_submodule("base_layer").weight + 8.0 / 4 * b @ a
    torch.testing.assert_close(merged.get_submodule("model.layers.1.mlp.up_proj").weight, expected, rtol=0, atol=1e-7)
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(merged(input_ids=ids).logits, model(input_ids=ids).logits, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(tensor, get_weights(base)[name]) for name, tensor in build_policy(base, torch.float32))


def test_export_policy__adapters__loads_wherever_the_base_model_does(tmp_path: Path) -> None:
    learner = build_learner(build_adapted())
    teach(learner, 0, 1)
    policy, base = load(read_policy(learner, tmp_path)), load_file(tiny_folder() / "model.safetensors")
    assert any(not torch.equal(policy[name], base[name]) for name in base)
    folder = tmp_path / "0"
    assert not (folder / "adapter_config.json").exists()
    worker = load_model(tiny_folder(), "bfloat16")
    load_weights(get_weights(worker), folder / "model.safetensors", "bfloat16")
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype is torch.bfloat16
    for ours, theirs in zip(worker.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_restore__adapters__continue_with_equal_bits(tmp_path: Path) -> None:
    straight, checkpoints = build_learner(build_adapted()), Checkpoints(tmp_path / "checkpoints", keep=1)
    teach(straight, 0, 1)
    checkpoints.save(straight, Step(2), {})
    teach(straight, 2, 3)
    resumed = build_learner(build_adapted(seed=1))  # values of fresh adapters must not matter
    state = checkpoints.restore(resumed)
    assert state is not None
    assert (state.step, resumed.updates) == (2, 2)
    teach(resumed, 2, 3)
    assert read_policy(resumed, tmp_path / "a") == read_policy(straight, tmp_path / "b")
    kept = load_file(tmp_path / "checkpoints" / "2" / "masters.safetensors")
    assert len(kept) == 2 * LAYERS
    assert all(".lora_" in name for name in kept)


@pytest.mark.parametrize("change", ["base", "alpha", "rank", "targets", "none"])
def test_restore__adapters_of_another_model__are_refused(tmp_path: Path, change: str) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(build_learner(build_adapted()), Step(1), {})
    models: dict[str, Callable[[], PreTrainedModel]] = {
        "alpha": lambda: build_adapted(alpha=9.0),
        "rank": lambda: build_adapted(rank=2, alpha=4.0),  # the same scale
        "targets": lambda: build_adapted(targets=("q_proj",)),
        "none": lambda: load_model(tiny_folder(), "float32"),
        "base": build_adapted,
    }
    other = models[change]()
    if change == "base":
        with torch.no_grad():
            other.get_input_embeddings().weight[7, 7] += 1e-3
    with pytest.raises(OperatorError, match="bad_checkpoint"):
        checkpoints.restore(build_learner(other))


def test_add_adapters__seed__decides_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, same, other = (dict(build_adapted(seed=seed).named_parameters()) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_add_adapters__no_peft__names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(OperatorError, match=r"no_lora: .*covey\[lora\]"):
        build_adapted()


UNSUITABLE = ["qq_proj", "lm_head", "embed_tokens", "input_layernorm", "norm", "self_attn", "layers", "0", "", "proj"]


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("others", [(), ("q_proj",)])
@pytest.mark.parametrize("target", [*UNSUITABLE, "model.embed_tokens", "all-linear", "model.layers.0.mlp.act_fn"])
def test_add_adapters__target_that_is_not_a_linear_layer_below_the_head__is_refused(
    target: str, others: tuple[str, ...], is_tied: bool
) -> None:
    model = build_small(is_tied=is_tied)
    with pytest.raises(OperatorError) as caught:
        adapt(model, targets=(*others, target))
    assert caught.value.code == "bad_lora_targets"
    assert f"lora.target_modules names {target!r}, but" in caught.value.message
    assert "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj" in caught.value.message
    assert not any(".lora_" in name for name, _ in model.named_parameters())


def test_add_adapters__layers_that_share_a_weight__are_refused() -> None:
    model = build_small(is_tied=False)
    layers: Any = model.model.layers
    layers[1].mlp.up_proj.weight = layers[0].mlp.up_proj.weight
    with pytest.raises(OperatorError, match=r"lora\.target_modules names 'up_proj', but"):
        adapt(model, targets=("up_proj",))
    layers[1].self_attn = layers[0].self_attn
    with pytest.raises(OperatorError, match=r"lora\.target_modules names 'q_proj', but"):
        adapt(model, targets=("q_proj",))


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("targets", [(), ("q_proj", "down_proj"), ("layers.0.mlp.up_proj",)])
def test_learn__any_linear_layers__published_policy_is_the_trained_one(targets: tuple[str, ...], is_tied: bool) -> None:
    base = build_small(is_tied=is_tied)
    model = copy.deepcopy(base)
    adapt(model, targets=targets)
    learner = build_learner(model)
    teach(learner, 0, 1, 2)
    assert all(bool(each.any()) for name, each in learner.get_masters().items() if ".lora_B." in name)
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        trained, published = (
            each(input_ids=ids).logits.log_softmax(-1) for each in (learner.model, merge(learner.model, base))
        )
    torch.testing.assert_close(published, trained, rtol=0, atol=1e-4)


def build_small(*, is_tied: bool) -> PreTrainedModel:
    """Build the tiny model with random weights, whose head shares its weight with the embedding if `is_tied`."""
    config = AutoConfig.from_pretrained(tiny_folder(), tie_word_embeddings=is_tied)
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) is is_tied
    return model


def test_recompute_activations__adapters__give_the_same_gradients() -> None:
    kept = build_learner(build_adapted())
    teach(kept, 0)  # before this every B is 0, so no gradient reaches A
    lean = build_learner(copy.deepcopy(kept.model))
    recompute_activations(lean.model)
    kept.update(build_batch(build_samples(seed=1)))
    lean.update(build_batch(build_samples(seed=1)))
    for ours, theirs in zip(lean.model.parameters(), kept.model.parameters(), strict=True):
        if theirs.requires_grad:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-6)


def test_add_adapters__bfloat16__frozen_weights_alone_have_it_and_the_policy_is_that_of_float32(tmp_path: Path) -> None:
    shape = replace(SHAPE, compute_dtype="bfloat16")
    learners = []
    for dtype in (torch.bfloat16, torch.float32):
        model = load_model(tiny_folder(), "float32")  # its file has bfloat16
        adapt(model, dtype=dtype)
        learners.append(build_learner(model, shape=shape))
        teach(learners[-1], 0, 1)
    lean, full = learners
    kinds = {(each.requires_grad, each.dtype) for each in lean.model.parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    assert lean.base_hash == full.base_hash
    assert all(torch.equal(tensor, full.get_masters()[name]) for name, tensor in lean.get_masters().items())
    assert read_policy(lean, tmp_path / "a") == read_policy(full, tmp_path / "b")


def test_build_learner__lora_settings__are_applied(build_harness: Callable[..., Any]) -> None:
    settings = {"lora": {"rank": 3, "alpha": 6.0, "target_modules": ("v_proj", "o_proj")}, "threads": 1}
    harness = build_harness(**settings)
    learner, _ = build_from_settings(harness.config, harness.params)
    masters = learner.get_masters()
    assert {name.split(".")[4] for name in masters} == {"v_proj", "o_proj"}
    assert {tensor.shape[0] for name, tensor in masters.items() if ".lora_A." in name} == {3}
    layer: Any = learner.model.get_submodule("model.layers.0.self_attn.v_proj")
    assert layer.scaling["default"] == 2.0


@pytest.mark.parametrize("n", [14, 31])
def test_run__adapters_and_a_kill__ends_in_the_same_policies(
    n: int, build_harness: Callable[..., Any], kill_at: Callable[[int | None], Any]
) -> None:
    settings = {
        "lora": {"rank": 4}, "model": {"activation_checkpointing": True}, "optim": {"learning_rate": 5e-3},
    }  # fmt: skip
    straight, killed = build_harness(**settings), build_harness(**settings)
    straight.run()
    assert len(set(straight.chain.hashes)) == 3
    kill_at(n)
    with pytest.raises(killed.killed):
        killed.run()
    kill_at(None)
    killed.run()
    assert killed.chain.hashes == straight.chain.hashes
