"""Weights of a model as a file, without the rest of a policy's folder."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from covey.model.policy_files import get_weights


def save_weights(model: PreTrainedModel, path: Path, dtype: torch.dtype) -> None:
    """Write the weights of a model, cast to `dtype`, under the names of its state."""
    save_file({name: value.detach().to(dtype) for name, value in get_weights(model).items()}, path, {"format": "pt"})
