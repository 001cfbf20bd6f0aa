"""LoRA (arXiv 2106.09685) with peft: small trained matrices added to frozen weights, merged before publication.

A published policy has the names and shapes of its base model, so no other role needs to know about adapters.
"""

import copy
import hashlib
from collections import Counter
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from covey.errors import OperatorError
from covey.model.policy_files import get_head


def add_adapters(model: PreTrainedModel, *, rank: int, alpha: float, targets: Sequence[str], seed: int) -> None:
    """Freeze the model and replace each W of `targets` by W + alpha / rank B A.

    B starts at 0, and `seed` determines A. `targets` are the last components of names of linear layers. Empty means all
    linear layers except the head.

    Raises OperatorError("no_lora") if peft is not installed, and OperatorError("bad_lora_targets") if a target is not a
    linear layer below the head.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise OperatorError(
            "no_lora",
            "lora_rank is set, but the package peft is not installed",
            fix="Install covey[lora], or remove lora_rank from the settings",
        ) from error
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=_find_layers(model, targets))  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)


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
            f"lora_targets names {named}, but only these linear layers can have adapters: {suitable}. "
            "The head, embeddings, norms and layers with tied weights cannot",
            fix="Set lora_targets to some of these names, or remove it for all of them",
        )
    return list({name: None for names in chosen.values() for name in names}) if targets else layers


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
