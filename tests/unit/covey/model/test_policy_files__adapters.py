"""A policy's folder cannot name another base model or weights other than its own."""

import shutil
from pathlib import Path

import pytest
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from covey.errors import OperatorError
from covey.model.policy_files import load_model
from covey.model.tiny import tiny_folder

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("is_complete", [True, False])
def test_load_model__folder_with_an_adapter__is_refused(tmp_path: Path, is_complete: bool) -> None:
    folder = tmp_path / "policy"
    if is_complete:
        shutil.copytree(tiny_folder(), folder)
    base = load_file(tiny_folder() / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    LoraConfig(r=96, target_modules=["q_proj"], base_model_name_or_path=str(tiny_folder())).save_pretrained(folder)
    name = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    save_file(
        {name.format(i, which): base.clone() for i in (0, 1) for which in "AB"}, folder / "adapter_model.safetensors"
    )
    with pytest.raises(OperatorError, match=r"model_unavailable: .*contains an adapter"):
        load_model(folder, "float32")
