"""Execution contracts: their digest is a vector, and any other value is another contract."""

import hashlib
import json

import pytest
from pydantic import ValidationError

from covey.protocol.execution_contract import ExecutionContract, list_digests
from tests.fakes.pool import make_contract

pytestmark = pytest.mark.unit
TEXT = (
    '{"architecture":"NVIDIA H200, sm_90","attention_backend":"TRITON_ATTN","attention_version":"triton 3.6.0",'
    '"batch_invariant":true,"block_size":0,"compilation":"eager","dtype":"float32","enable_prefix_caching":true,'
    '"engine":"vllm","engine_version":"0.32.0","head_dtype":"model","sampler":1,"tensor_parallel_size":1,"threads":0,'
    '"torch":"2.13.0+cu130"}'
)
OTHERS = {
    "architecture": "NVIDIA H100, sm_90",
    "attention_backend": "FLASH_ATTN",
    "attention_version": "vllm 0.32.0",
    "batch_invariant": False,
    "block_size": 16,
    "compilation": "compiled",
    "dtype": "bfloat16",
    "enable_prefix_caching": False,
    "engine_version": "0.33.0",
    "head_dtype": "float32",
    "sampler": 2,
    "tensor_parallel_size": 2,
    "threads": 1,
    "torch": "2.14.0",
}


def test_digest__by_hand__is_the_hash_of_canonical_json() -> None:
    assert make_contract().encode().decode() == TEXT
    assert make_contract().digest == "0x" + hashlib.sha256(TEXT.encode()).hexdigest()
    assert ExecutionContract.model_validate_json(TEXT) == make_contract()


@pytest.mark.parametrize("name", OTHERS)
def test_digest__any_other_value__is_another_contract(name: str) -> None:
    assert set(OTHERS) | {"engine"} == set(json.loads(TEXT))
    other = make_contract(**{name: OTHERS[name]})
    assert other.digest != make_contract().digest
    assert other.find_differences([make_contract()]) == {name: (json.loads(TEXT)[name], OTHERS[name])}
    assert other.describe() != make_contract().describe()


def test_model_validate__contract_without_the_format_of_logits__is_the_models() -> None:
    old = {name: value for name, value in json.loads(TEXT).items() if name != "head_dtype"}
    assert ExecutionContract.model_validate(old) == make_contract()


def test_find_differences__several__are_those_of_the_most_similar() -> None:
    far, near = make_contract(torch="1", sampler=2), make_contract(torch="2")
    assert make_contract().find_differences([far, near]) == {"torch": ("2", "2.13.0+cu130")}
    assert make_contract().find_differences([far, make_contract()]) == make_contract().find_differences([]) == {}
    assert list(list_digests([far, near]).items()) == [(far.digest, far), (near.digest, near)]


def test_describe__two_cards__is_one_line_with_the_cards_first() -> None:
    described = make_contract(tensor_parallel_size=2).describe()
    assert described == (
        "2 x NVIDIA H200, sm_90; vllm 0.32.0; torch 2.13.0+cu130; TRITON_ATTN (triton 3.6.0); float32; eager; "
        "batch-invariant; default blocks; prefix caching; sampler 1"
    )


@pytest.mark.parametrize(
    "changes",
    [{"engine": "hf"}, {"torch": ""}, {"torch": "\x1b[2J"}, {"sampler": 0}, {"attention_backend": "a"}, {"x": 1}],
)
def test_contract__wrong_value__is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make_contract(**changes)
