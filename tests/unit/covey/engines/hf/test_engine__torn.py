"""A half-loaded policy is not used to generate or to judge."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from covey.engines.hf.engine import HuggingFaceEngine
from covey.errors import TransientError
from covey.model import policy_files
from covey.model.tiny import build_model, build_tokenizer, tiny_folder

pytestmark = pytest.mark.unit


def test_load_policy__disk_fails_halfway__leaves_no_policy_until_one_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    policy_files.save_policy(build_model(9), build_tokenizer(), tmp_path, "bfloat16")
    engine = HuggingFaceEngine(base=tiny_folder())
    engine.load_policy(tiny_folder(), 3)
    whole = policy_files.safe_open

    @contextmanager
    def open_torn(path: Path, **how: Any) -> Iterator[SimpleNamespace]:
        """Open a file that fails halfway. Every tensor is read once to be checked, and the third second read fails."""
        with whole(path, **how) as file:
            read = list[str]()

            def get_tensor(name: str) -> torch.Tensor:
                read.append(name)
                if len(read) == len(file.keys()) + 3:
                    raise OSError("input/output error")
                return file.get_tensor(name)

            yield SimpleNamespace(keys=file.keys, get_slice=file.get_slice, get_tensor=get_tensor)

    with monkeypatch.context() as torn:
        torn.setattr(policy_files, "safe_open", open_torn)
        with pytest.raises(TransientError) as caught:
            engine.load_policy(tmp_path, 4)
    assert (caught.value.code, engine.policy_version) == ("disk_failed", None)
    engine.load_policy(tiny_folder(), 3)
    assert engine.policy_version == 3
