"""LoRA (arXiv 2106.09685) with peft: small trained matrices added to frozen weights, merged before publication.

A published policy has the names and shapes of its base model, so no other role needs to know about adapters.
"""

import copy
import hashlib
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from covey.errors import OperatorError


def add_adapters(model: PreTrainedModel, *, rank: int, alpha: float, targets: Sequence[str], seed: int) -> None:
    """Freeze the model and replace each W of `targets` by W + alpha / rank B A.

    B starts at 0, and `seed` determines A. `targets` are the last components of names of linear layers. Empty means all
    linear layers except the head.

    Raises OperatorError("no_lora") if peft is not installed, and OperatorError("bad_lora_targets") if peft refuses the
    targets.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise OperatorError(
            "no_lora",
            "lora_rank is set, but the package peft is not installed",
            fix="Install covey[lora], or remove lora_rank from the settings",
        ) from error
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets) or "all-linear")  # type: ignore[arg-type]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, model)
    except ValueError as error:
        raise OperatorError(
            "bad_lora_targets", str(error), fix="Set lora_targets to names of linear layers in the model"
        ) from error


def has_adapters(model: PreTrainedModel) -> bool:
    """Return whether the model has adapters."""
    return hasattr(model, "peft_config")


def merge_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy with the adapters merged into the weights, under the base model's names.

    A model without adapters is returned unchanged.
    """
    if not has_adapters(model):
        return model
    from peft.tuners.tuners_utils import BaseTunerLayer

    merged = copy.deepcopy(model)
    layers = [(name, layer) for name, layer in merged.named_modules() if isinstance(layer, BaseTunerLayer)]
    for name, layer in layers:
        layer.merge()
        merged.set_submodule(name, layer.get_base_layer())
    return merged


def compute_base_hash(model: PreTrainedModel) -> str:
    """Return the SHA-256 of everything that adapters depend on: frozen weights and scales. Empty without adapters."""
    if not has_adapters(model):
        return ""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    for name, layer in model.named_modules():
        digest.update(f"{name} {getattr(layer, 'scaling', '')}".encode())
    return digest.hexdigest()
