import json
import random

import pytest
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from covey.errors import ProtocolError
from covey.protocol.hardware_needs import HardwareNeeds
from covey.protocol.params import MAX_PARAMS_BYTES, EnvironmentParams, ModelParams, PoolParams, VerificationParams
from covey.protocol.submission_file.codec import decode, encode
from covey.protocol.submission_file.rows import Budget, Rollout
from covey.protocol.thresholds import Pooled, Thresholds
from tests.fakes.pool import make_contract, make_exact

pytestmark = pytest.mark.unit
EXACT = make_exact(make_contract())

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
options = st.dictionaries(
    texts, st.integers() | st.booleans() | texts | st.lists(st.integers(), max_size=3), max_size=4
)


def build(**changes):
    return PoolParams(**({"name": "p", "environment": EnvironmentParams(kind="k")} | changes))


def keccak_of(text):
    return "0x" + keccak(text.encode()).hex()


pooled = st.builds(
    Pooled, mean=st.floats(0, 1e9), variance=st.floats(0, 1e9), largest=st.floats(0, 1e9), items=st.integers(1, 9)
)


@st.composite
def params(draw):
    per_task = draw(st.integers(1, 256))
    return PoolParams(
        name=draw(texts),
        environment=EnvironmentParams(kind="reasoning_gym", options=draw(options)),
        model=ModelParams(temperature=draw(st.floats(0.01, 10))),
        verification=VerificationParams(
            audit_rate=draw(st.floats(0, 1)),
            thresholds=Thresholds(margin_max=draw(st.floats(0, 1e300)), lost=draw(st.none() | pooled)),
        ),
        group_size=draw(st.integers(2, 64)),
        max_submission_bytes=1 << 30,
        groups_per_task=per_task,
        groups_per_step=per_task * draw(st.integers(1, 1000)),
        lease_seconds=draw(st.floats(1e-3, 1e9) | st.integers(1, 10**9)),
        max_steps=draw(st.none() | st.integers(1, 1 << 31)),
        online_filter=draw(st.booleans()),
        max_sampling=draw(st.floats(1, 64)),
    )


@given(params())
def test_params__any__text_round_trips_under_its_hash_and_is_canonical(value):
    text = value.to_text()
    assert value.compute_hash() == keccak_of(text)
    again = PoolParams.from_text(text, value.compute_hash())
    assert again == value
    assert again.to_text() == text
    assert json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False) == text


def test_to_text__no_needs__is_the_text_of_a_pool_from_before_there_were_needs():
    assert '"needs"' not in build().to_text()
    needs = HardwareNeeds(min_disk_bytes=5)
    text = build(needs=needs).to_text()
    assert '"needs":{"accelerators":[],"min_bandwidth_bits":0,"min_disk_bytes":5,"min_memory_bytes":0}' in text
    assert PoolParams.from_text(text, keccak_of(text)).needs == needs


@pytest.mark.parametrize(
    "needs",
    [
        '{"min_memory_bytes":-1}',
        '{"min_memory_bytes":1e400}',
        '{"accelerators":["gpu:count=many"]}',
        '{"accelerators":"gpu"}',
        '{"more":1}',
        "null",
    ],
)
def test_from_text__needs_of_another_form__are_refused(needs):
    text = build().to_text().replace('"online_filter"', f'"needs":{needs},"online_filter"')
    with pytest.raises(ProtocolError, match="bad_params"):
        PoolParams.from_text(text, keccak_of(text))


@pytest.mark.parametrize(
    ("rules", "models"),
    [
        ({}, ()),
        ({"hardware": "cpu"}, ()),
        ({"hardware": "NVIDIA H100 80GB HBM3"}, ("NVIDIA H100 80GB HBM3",)),
        (make_exact(make_contract(architecture="NVIDIA H200, sm_90")), ("NVIDIA H200",)),
        (make_exact(make_contract(architecture="AMD EPYC, AVX512")), ()),
        (
            make_exact(make_contract(architecture="NVIDIA H200, sm_90"), make_contract(architecture="EPYC, AVX512")),
            (),
        ),
    ],
)
def test_list_models__hardware_of_the_pool__names_accelerators_only(rules, models):
    assert VerificationParams(**rules).list_models() == models


def test_params__derived_numbers__by_hand():
    value = build(groups_per_task=4, group_size=8, quorum=3, model=ModelParams(max_completion_tokens=10))
    assert value.rollouts_per_task == 32
    assert value.max_task_units == 320
    assert value.max_judgements == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"groups_per_step": 7, "groups_per_task": 2},
        {"group_size": 1},
        {"max_staleness": -1},
        {"quorum": 0},
        {"lease_seconds": 0},
        {"lease_seconds": float("nan")},
        {"epoch_seconds": float("inf")},
        {"max_submission_bytes": 1},
        {"max_submission_bytes": 1 << 30, "group_size": 256, "model": {"max_completion_tokens": 32_768}},
        {"verification": {"proof_top_k": 1025}},
        {"verification": {"proof_window": 0}},
        {"environment": {"kind": "k", "fingerprint": "0x" + "AB" * 32}},
        {"environment": {"kind": "k", "fingerprint": "ab" * 32}},
        {"model": {"compute_dtype": "bfloat16"}},
        {"model": {"compute_dtype": "float16"}},
        {"verification": {"mode": "exact"}},
        {"model": {"temperature": float("nan")}},
        {"model": {"temperature": 0}},
        {"verification": {"audit_rate": 1.1}},
        {"verification": {"thresholds": {"margin_max": float("inf")}}},
        {"verification": {"thresholds": {"false_reject_rate": 0}}},
        {"verification": {"thresholds": {"lost": {"mean": -1}}}},
        {"verification": {"mode": "exact", "worker_engine": "vllm", "validator_engine": "hf"}},
        {"verification": {"mode": "exact", "worker_engine": "hf", "validator_engine": "hf"}},
        {"verification": EXACT | {"hardware": "cpu"}},
        {"verification": EXACT | {"contracts": []}},
        {"verification": EXACT | {"contracts": [*EXACT["contracts"], *EXACT["contracts"]]}},
        {"verification": EXACT | {"worker_engine": "hf", "validator_engine": "hf"}},
        {"verification": EXACT | {"mode": "calibrated", "validator_engine": "hf"}},
        {"verification": make_exact(*(make_contract(sampler=i) for i in range(1, 18)))},
        {"model": {"compute_dtype": "bfloat16"}, "verification": EXACT},
        {"verification": {"hardware": ""}},
        {"verification": {"hardware": "x" * 65}},
        {"verification": {"hardware": "cpu\n"}},
        {"model": {"compute_dtype": "bfloat16"}, "verification": {"worker_engine": "hf", "hardware": "cpu"}},
        {"model": {"compute_dtype": "bfloat16"}, "verification": {"worker_engine": "hf", "validator_engine": "hf"}},
        {"verification": {"mode": "none"}},
        {"max_sampling": 0.99},
        {"max_sampling": float("nan")},
        {"max_sampling": 64.1},
        {"online_filter": "sometimes"},
        {"surprise": 1},
    ],
)
def test_params__out_of_bounds__refused(changes):
    with pytest.raises(ValidationError):
        build(**changes)


@pytest.mark.parametrize(
    ("sampling", "is_on", "groups"),
    [(4.0, False, 12), (1.0, True, 12), (1.3, True, 12), (1.4, True, 16), (4, True, 48)],
)
def test_max_groups_per_step__by_hand__is_whole_tasks(sampling: float, is_on: bool, groups: int):
    """With 12 groups per step and 4 per task, 1.3 x 12 = 15.6 and 1.4 x 12 = 16.8 are rounded down to whole tasks."""
    value = build(groups_per_step=12, groups_per_task=4, max_sampling=sampling, online_filter=is_on)
    assert value.max_groups_per_step == groups


def test_online_filter__older_text_without_it__is_off():
    params = json.loads(build().to_text())
    text = json.dumps({name: value for name, value in params.items() if name not in ("online_filter", "max_sampling")})
    value = PoolParams.from_text(text, keccak_of(text))
    assert (value.online_filter, value.max_sampling) == (False, 4.0)


def test_from_text__another_hash__refused():
    text = build().to_text()
    with pytest.raises(ProtocolError, match="do not have the hash"):
        PoolParams.from_text(text + " ", keccak_of(text))


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"name":"x"}', "[" * 16_000, '{"version":5}', "1" * 5000])
def test_from_text__does_not_parse__refused(text):
    with pytest.raises(ProtocolError, match="bad_params"):
        PoolParams.from_text(text, keccak_of(text))


def test_from_text__too_long__refused():
    text = build().to_text() + " " * MAX_PARAMS_BYTES
    with pytest.raises(ProtocolError, match="parameters exceed"):
        PoolParams.from_text(text, keccak_of(text))


def test_needed_submission_bytes__by_hand__and_one_byte_less_is_refused_with_the_number():
    changes = {
        "group_size": 4,
        "groups_per_task": 2,
        "model": {"max_prompt_tokens": 100, "max_completion_tokens": 70},
        "verification": {"proof_window": 32, "proof_top_k": 128},
    }
    rows = 8 * (32 + 5 * 100 + 10 * 70 + 3 * (258 + 5))
    needed = 8192 + rows + rows // 64
    value = build(**changes, max_submission_bytes=needed)
    assert (value.needed_submission_bytes, value.proof_bytes) == (needed, 258)
    with pytest.raises(ValidationError, match=f"max_submission_bytes is less than {needed},"):
        build(**changes, max_submission_bytes=needed - 1)


@pytest.mark.parametrize(
    ("prompt", "tokens", "window", "top_k", "groups"),
    [(1, 1, 32, 128, 1), (64, 8, 32, 128, 4), (300, 700, 1, 128, 2), (16, 1500, 32, 512, 8), (4000, 40, 64, 1, 3)],
)
def test_needed_submission_bytes__largest_honest_file_of_noise__fits_and_decodes(prompt, tokens, window, top_k, groups):
    """Nothing in the file can be compressed, and every list is as long as allowed."""
    value = build(
        group_size=2,
        groups_per_task=groups,
        groups_per_step=groups,
        model={"max_prompt_tokens": prompt, "max_completion_tokens": tokens},
        verification={"proof_window": window, "proof_top_k": top_k},
        max_submission_bytes=1 << 30,
    )
    rng = random.Random(3)
    rows = [
        Rollout(
            group=group,
            sibling=sibling,
            seed=rng.getrandbits(63),
            prompt=tuple(rng.getrandbits(31) for _ in range(prompt)),
            tokens=tuple(rng.getrandbits(31) for _ in range(tokens)),
            logprobs=tuple(-rng.expovariate(1) for _ in range(tokens)),
            proofs=tuple(rng.randbytes(2 + 2 * top_k) for _ in range(-(-tokens // window))),
            finished=rng.random() < 0.5,
            reward=rng.random(),
        )
        for group in range(groups)
        for sibling in range(2)
    ]
    file = encode(rows)
    assert len(file) <= value.needed_submission_bytes
    assert value.needed_submission_bytes < 2 * len(file) + 10_000  # A bound that is too wide would refuse valid pools.
    budget = Budget(
        file_bytes=value.needed_submission_bytes,
        rows=value.rollouts_per_task,
        prompt_tokens=prompt,
        completion_tokens=tokens,
        proof_bytes=value.proof_bytes,
        proof_window=window,
    )
    assert len(decode(file, budget)) == 2 * groups


def test_params__bfloat16_with_engines_and_hardware__is_calibrated():
    rules = {"worker_engine": "vllm", "validator_engine": "hf", "hardware": "NVIDIA H100 80GB HBM3"}
    assert build(model={"compute_dtype": "bfloat16"}, verification=rules).verification.mode == "calibrated"
    rules = make_exact(make_contract(dtype="bfloat16"))
    assert build(model={"compute_dtype": "bfloat16"}, verification=rules).verification.mode == "exact"


def test_params__contracts_and_hardware__are_in_the_text():
    others = (make_contract(architecture="NVIDIA H100, sm_90"), make_contract(torch="2.11.0"))
    made = build(verification=make_exact(*others) | {"mode": "calibrated"})
    rules = json.loads(made.to_text())["verification"]
    assert rules["contracts"] == [each.model_dump() for each in others]
    assert list(made.verification.list_digests().values()) == list(others)
    assert build(verification={"hardware": "x" * 64}).verification.hardware == "x" * 64
    assert (build().verification.hardware, build().verification.contracts) == ("any", ())


def test_fingerprint__given__is_in_the_text():
    fingerprint = "0x" + "ab" * 32
    value = build(environment={"kind": "k", "fingerprint": fingerprint})
    assert json.loads(value.to_text())["environment"] == {
        "kind": "k",
        "options": {},
        "fingerprint": fingerprint,
        "versions": {},
    }
    assert json.loads(build().to_text())["environment"]["fingerprint"] is None
    assert build().compute_hash() != build(environment={"kind": "k", "fingerprint": fingerprint}).compute_hash()


def test_from_text__number_format_without_calibration__refused():
    text = build().to_text().replace('"float32"', '"bfloat16"')
    with pytest.raises(ProtocolError, match="bad_params"):
        PoolParams.from_text(text, keccak_of(text))


PARAMS = PoolParams(
    name="test", environment=EnvironmentParams(kind="reasoning_gym"), model=ModelParams(max_prompt_tokens=16),
    group_size=2, groups_per_step=4, groups_per_task=2, max_staleness=1,
)  # fmt: skip


def test_build_budget__pool__by_hand() -> None:
    rules = {"proof_window": 4, "proof_top_k": 10}
    params = PoolParams.model_validate(PARAMS.model_dump() | {"verification": rules})
    assert params.build_budget() == Budget(
        file_bytes=4 << 20, rows=4, prompt_tokens=16, completion_tokens=8, proof_bytes=22, proof_window=4
    )
