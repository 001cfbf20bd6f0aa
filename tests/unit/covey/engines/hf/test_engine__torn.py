"""A policy is read while the engine computes, and one that cannot be read or copied leaves no half of it in use."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from covey.engines.base import GenerationRequest, ReplayRequest
from covey.engines.hf import engine as hf_engine
from covey.engines.hf.engine import HuggingFaceEngine
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.model import policy_files, weight_files
from covey.model.tiny import build_model, build_tokenizer, tiny_folder
from covey.model.weight_files import StagedWeights
from covey.protocol.policy_record import WEIGHTS_FILE
from tests.fakes.weights import save_weights

pytestmark = pytest.mark.unit

REQUESTS = [GenerationRequest(prompt=(2, 50, 60), seed=5, max_tokens=4)]


def list_logprobs(engine: HuggingFaceEngine) -> list[tuple[float, ...]]:
    return [each.logprobs for each in engine.generate(REQUESTS, temperature=1.0)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    policy_files.save_policy(build_model(9), build_tokenizer(), tmp_path, "bfloat16")
    return tmp_path


def test_load_policy__disk_fails_halfway__keeps_the_old_policy(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    engine = HuggingFaceEngine(base=tiny_folder())
    engine.load_policy(tiny_folder(), 3)
    before = list_logprobs(engine)
    whole = weight_files.safe_open

    @contextmanager
    def open_torn(path: Path, **how: Any) -> Iterator[SimpleNamespace]:
        """Open a file of which the third tensor cannot be read."""
        with whole(path, **how) as file:
            read = list[str]()

            def get_tensor(name: str) -> torch.Tensor:
                read.append(name)
                if len(read) == 3:
                    raise OSError("input/output error")
                return file.get_tensor(name)

            yield SimpleNamespace(keys=file.keys, get_slice=file.get_slice, get_tensor=get_tensor)

    with monkeypatch.context() as torn:
        torn.setattr(weight_files, "safe_open", open_torn)
        with pytest.raises(TransientError) as caught:
            engine.load_policy(folder, 4)
    assert (caught.value.code, engine.policy_version) == ("disk_failed", 3)
    assert list_logprobs(engine) == before


def test_load_policy__copying_fails_halfway__leaves_no_policy_until_one_is_loaded(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    engine = HuggingFaceEngine(base=tiny_folder())
    engine.load_policy(tiny_folder(), 3)

    def fail(_: StagedWeights) -> None:
        raise RuntimeError("the device failed")

    with monkeypatch.context() as torn:
        torn.setattr(StagedWeights, "apply", fail)
        with pytest.raises(RuntimeError):
            engine.load_policy(folder, 4)
    assert engine.policy_version is None
    claim = ReplayRequest(prompt=(2, 50, 60), tokens=(70, 1), seed=5)
    for use in (
        lambda: engine.generate(REQUESTS, temperature=1.0),
        lambda: engine.replay([claim], temperature=1.0),
    ):
        with pytest.raises(OperatorError, match=r"no_policy: .*Call load_policy"):
            use()
    engine.load_policy(tiny_folder(), 3)
    assert engine.policy_version == 3
    assert len(engine.replay([claim], temperature=1.0)) == 1


def test_load_policy__weights_with_nan__keep_the_old_policy(folder: Path) -> None:
    engine = HuggingFaceEngine(base=tiny_folder())
    engine.load_policy(tiny_folder(), 3)
    before = list_logprobs(engine)
    broken = build_model(9)
    with torch.no_grad():
        broken.model.norm.weight[7] = torch.nan
    save_weights(broken, folder / WEIGHTS_FILE, torch.bfloat16)
    with pytest.raises(ProtocolError, match="contains NaN or Inf"):
        engine.load_policy(folder, 4)
    assert engine.policy_version == 3
    assert list_logprobs(engine) == before


def test_load_policy__while_the_file_is_read__the_engine_generates(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    engine = HuggingFaceEngine(base=tiny_folder())
    engine.load_policy(tiny_folder(), 3)
    made: list[int] = []
    stage = hf_engine.stage_weights

    def generate() -> None:
        made.extend(each.policy_version for each in engine.generate(REQUESTS, temperature=1.0))

    def stage_slowly(*args: Any, **how: Any) -> StagedWeights:
        thread = threading.Thread(target=generate)
        thread.start()
        thread.join(timeout=20)  # ends only if the generation does not wait for the load
        assert not thread.is_alive()
        return stage(*args, **how)

    monkeypatch.setattr(hf_engine, "stage_weights", stage_slowly)
    engine.load_policy(folder, 4)
    assert (made, engine.policy_version) == ([3], 4)
