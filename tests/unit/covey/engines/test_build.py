"""Which engine a setting means, and whether a pool's thresholds hold for it."""

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from covey.engines.base import Request
from covey.engines.build import build_engine, require_engine
from covey.errors import OperatorError
from covey.model.tiny import tiny_folder
from covey.protocol.params import PoolParams
from tests.fakes.tools import make_model_params
from validator import app as validator_app
from validator.config import ValidatorConfig
from worker import app as worker_app
from worker.config import WorkerConfig

pytestmark = pytest.mark.unit


def test_build_engine__hf__computes_in_the_number_format_that_was_asked_for() -> None:
    found = {}
    for dtype in ("float32", "bfloat16"):
        engine = build_engine("hf", dtype=dtype, batch=3)
        assert engine.policy_version is None
        engine.load_policy(tiny_folder(), 5)
        assert (engine.policy_version, engine.vocabulary_size, engine.hidden_size) == (5, 259, 96)
        (found[dtype],) = engine.generate([Request(prompt=(2, 40, 41, 42), seed=9, max_tokens=1)], temperature=1.0)
    rounded = found["bfloat16"].logprobs[0]
    assert rounded != found["float32"].logprobs[0]
    assert rounded == pytest.approx(found["float32"].logprobs[0], abs=0.1)


def test_build_engine__threads__are_torchs() -> None:
    before = torch.get_num_threads()
    try:
        build_engine("hf", dtype="float32", batch=1, threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["", "HF", "any", "llama.cpp"])
def test_build_engine__unknown_name__says_which_there_are(name: str) -> None:
    with pytest.raises(OperatorError) as caught:
        build_engine(name, dtype="float32", batch=1)
    assert (caught.value.code, "hf" in caught.value.fix) == ("bad_engine", True)


@pytest.mark.parametrize(("name", "wanted"), [("hf", "hf"), ("hf", "any"), ("vllm", "vllm"), ("another", "any")])
def test_require_engine__thresholds_hold_for_it__returns(name: str, wanted: str) -> None:
    require_engine(name, wanted, "worker")


@pytest.mark.parametrize(("name", "wanted"), [("hf", "vllm"), ("vllm", "hf"), ("any", "hf"), ("", "hf")])
def test_require_engine__thresholds_hold_for_another__names_it_and_the_role(name: str, wanted: str) -> None:
    with pytest.raises(OperatorError) as caught:
        require_engine(name, wanted, "validator")
    assert caught.value.code == "wrong_engine"
    assert f"hold for validators on {wanted}" in caught.value.message
    assert wanted in caught.value.fix


def join(params: PoolParams) -> SimpleNamespace:
    """A network that has nothing against this wallet; whatever a root composes after its engine is missing."""
    return SimpleNamespace(
        pool=1,
        params=params,
        wallet=SimpleNamespace(address="0x1"),
        terms=SimpleNamespace(validator_bond=0),
        contracts=SimpleNamespace(
            nodes=SimpleNamespace(contributor_of=lambda pool, node: "0x2"),
            pools=SimpleNamespace(is_validator=lambda pool, who: True),
            stakes=SimpleNamespace(stake_of=lambda pool, kind, who: 0),
        ),
    )


@pytest.mark.parametrize("role", ["worker", "validator"])
def test_roles__pool_calibrated_for_another_engine__refuse_to_start(tmp_path: Path, role: str) -> None:
    pair = {"worker_engine": "hf", "validator_engine": "hf"} | {f"{role}_engine": "vllm"}
    network = join(make_model_params(verification=pair))
    settings = {"home": tmp_path, "pool": 1, "deployment": tmp_path / "d", "key_file": tmp_path / "k"}
    if role == "worker":
        start = partial(worker_app.build, WorkerConfig(**settings), network, None, asyncio.Event())
    else:
        start = partial(validator_app.build, ValidatorConfig(**settings), network, None, None, asyncio.Event())
    told = f"wrong_engine: this pool's thresholds hold for {role}s on vllm, not on hf"
    with pytest.raises(OperatorError, match=told):
        start()
    assert list(tmp_path.iterdir()) == []
