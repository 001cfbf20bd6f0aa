"""LoRA (arXiv 2106.09685) with peft: small trained matrices added to frozen weights, merged before publication.

A published policy has the names and shapes of its base model, so no other role needs to know about adapters. The
functions that read weights gather shards, so all ranks call them at the same time.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from covey.errors import OperatorError
from covey.model.policy_files import get_head, get_weights
from trainer.distributed.loading import copy_shard
from trainer.distributed.sharding import make_whole

_ADAPTER = "default"
"""Name that peft gives to an adapter."""


def add_adapters(
    model: PreTrainedModel, *, rank: int, alpha: float, targets: Sequence[str], dtype: torch.dtype
) -> None:
    """Freeze the model and replace each W of `targets` by W + alpha / rank B A. `fill_adapters` sets B and A.

    `targets` are the last components of names of linear layers. Empty means all linear layers except the head. Frozen
    weights have `dtype` from here on, in which the layers compute. Only adapters are float32.

    Raises OperatorError("no_lora") if peft is not installed, and OperatorError("bad_lora_targets") if a target is not a
    linear layer below the head.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise OperatorError(
            "no_lora",
            "lora.rank is set, but the package peft is not installed",
            fix="Install covey[lora], or remove lora.rank from the settings",
        ) from error
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=_find_layers(model, targets))  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(config, model)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)


@torch.no_grad()
def fill_adapters(model: PreTrainedModel, seed: int) -> None:
    """Set every B to 0 and every A to values that `seed` determines, on any number of ranks."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in get_weights(model).items():
        if ".lora_B." in name:
            tensor.zero_()
        elif ".lora_A." in name:
            whole = torch.nn.init.kaiming_uniform_(torch.empty(tensor.shape), a=math.sqrt(5), generator=generator)
            copy_shard(tensor, whole)


def _find_layers(model: PreTrainedModel, targets: Sequence[str]) -> list[str]:
    """Return the full names of the layers that get adapters. Raises OperatorError("bad_lora_targets").

    The learner reads the head's weight alone, and a tied weight serves several layers. Adapters there would not learn,
    or would change more in the published policy than in the trained one.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    layers = [
        name
        for name, module in modules.items()
        if isinstance(module, (torch.nn.Linear, Conv1D))
        and module is not get_head(model)
        and uses[id(module.weight)] == 1
    ]
    chosen = {target: [name for name in modules if f".{name}".endswith(f".{target}")] for target in targets}
    wrong = [target for target, names in chosen.items() if not names or not set(names) <= set(layers)]
    if wrong or not layers:
        suitable = ", ".join(sorted({name.rpartition(".")[2] for name in layers})) or "none"
        named = ", ".join(map(repr, wrong)) or "nothing"
        raise OperatorError(
            "bad_lora_targets",
            f"lora.target_modules names {named}, but only these linear layers can have adapters: {suitable}. "
            "The head, embeddings, norms and layers with tied weights cannot",
            fix="Set lora.target_modules to some of these names, or remove it for all of them",
        )
    return list({name: None for names in chosen.values() for name in names}) if targets else layers


def has_adapters(model: PreTrainedModel) -> bool:
    """Return whether the model has adapters."""
    return hasattr(model, "peft_config")


@torch.no_grad()
def build_policy(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of the published policy by name, whole and in `dtype`, with the adapters merged.

    Names and shapes are those of the base model. Only one tensor at a time is whole.
    """
    layers = {f"{name}.base_layer.weight": layer for name, layer in model.named_modules() if _is_adapted(layer)}
    for name, tensor in get_weights(model).items():
        if name in layers:
            merged = make_whole(tensor.detach()).float() + _compute_change(layers[name])
            yield name.replace(".base_layer.", "."), merged.to(dtype)
        elif ".lora_" not in name:
            yield name.replace(".base_layer.", "."), make_whole(tensor.detach().to(dtype))


def _is_adapted(layer: torch.nn.Module) -> bool:
    return hasattr(layer, "lora_A") and hasattr(layer, "base_layer")


def _compute_change(layer: Any) -> Tensor:
    """Return what the adapter of a layer adds to its weight, in float32."""
    down, up = (make_whole(each[_ADAPTER].weight.detach()) for each in (layer.lora_A, layer.lora_B))
    change: Tensor = (up @ down) * layer.scaling[_ADAPTER]
    return change.T if layer.fan_in_fan_out else change


def compute_base_hash(model: PreTrainedModel) -> str:
    """Return the SHA-256 of everything that adapters depend on: frozen weights and scales. Empty without adapters.

    Weights count by their values in float32, whatever their dtype.
    """
    if not has_adapters(model):
        return ""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            digest.update(name.encode())
            values = make_whole(parameter.detach()).cpu().float().contiguous()
            digest.update(values.flatten().view(torch.uint8).numpy().tobytes())
    for name, layer in model.named_modules():
        digest.update(f"{name} {getattr(layer, 'scaling', '')}".encode())
    return digest.hexdigest()
