"""LoRA (arXiv 2106.09685) through peft: small matrices beside frozen weights, merged when a policy is published.

Called by `app`, `learner` and `checkpoint`.  A published policy has the names and shapes of its base model, so nobody
else knows of adapters.
"""

import copy
import hashlib
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from covey.errors import OperatorError


def add_adapters(model: PreTrainedModel, *, rank: int, alpha: float, targets: Sequence[str], seed: int) -> None:
    """Freeze the model and put W + alpha / rank B A in the place of each W of `targets`; B is 0, A follows from `seed`.

    `targets` are last parts of names of linear layers; none means all but the head.
    Raises OperatorError("no_lora") where peft is not installed, OperatorError("bad_lora_targets").
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise OperatorError(
            "no_lora", "peft is not installed", fix="Install covey[lora], or leave lora_rank out"
        ) from error
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets) or "all-linear")  # type: ignore[arg-type]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, model)
    except ValueError as error:
        raise OperatorError(
            "bad_lora_targets", str(error), fix="Name linear layers of the model in lora_targets"
        ) from error


def has_adapters(model: PreTrainedModel) -> bool:
    """Whether `add_adapters` was called."""
    return hasattr(model, "peft_config")


def merge_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """A copy in which adapters are part of the weights, with the base model's names; a model without any itself."""
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
    """SHA-256 of all that an adapter means nothing without: frozen weights and scales; empty where there are none."""
    if not has_adapters(model):
        return ""
    found = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            found.update(name.encode())
            found.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    for name, layer in model.named_modules():
        found.update(f"{name} {getattr(layer, 'scaling', '')}".encode())
    return found.hexdigest()
