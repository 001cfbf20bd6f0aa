"""A setting chooses an engine, hardware and build are described, and a pool's thresholds must hold for them."""

import asyncio
import dataclasses
import importlib.util
import sys
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from covey.engines import factory
from covey.engines.base import GenerationRequest
from covey.engines.factory import (
    EnginePlan,
    build_engine,
    choose_engine,
    choose_options,
    describe_contract,
    list_contracts,
    plan_engine,
    require_engine,
    run_in_lane,
)
from covey.engines.vllm.vllm_options import NotExactError, VllmOptions
from covey.errors import OperatorError
from covey.model.tiny import tiny_folder
from covey.protocol.execution_contract import ExecutionContract
from covey.protocol.params import PoolParams, VerificationParams
from tests.fakes.pool import make_contract, make_exact
from tests.fakes.tools import make_model_params
from validator import app as validator_app
from validator.config import ValidatorConfig
from worker import app as worker_app
from worker.config import WorkerConfig

pytestmark = pytest.mark.unit
HOPPER = "NVIDIA H100 80GB HBM3"


def test_build_engine__hf__computes_in_the_given_dtype() -> None:
    completions = {}
    for dtype in ("float32", "bfloat16"):
        engine = build_engine("hf", dtype=dtype, batch=3)
        assert engine.policy_version is None
        engine.load_policy(tiny_folder(), 5)
        assert (engine.policy_version, engine.vocabulary_size, engine.hidden_size) == (5, 259, 96)
        (completions[dtype],) = engine.generate(
            [GenerationRequest(prompt=(2, 40, 41, 42), seed=9, max_tokens=1)], temperature=1.0
        )
    rounded = completions["bfloat16"].logprobs[0]
    assert rounded != completions["float32"].logprobs[0]
    assert rounded == pytest.approx(completions["float32"].logprobs[0], abs=0.1)


def test_build_engine__threads__set_the_threads_of_torch() -> None:
    before = torch.get_num_threads()
    try:
        build_engine("hf", dtype="float32", batch=1, threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["", "HF", "any", "llama.cpp"])
def test_build_engine__unknown_name__lists_the_engines(name: str) -> None:
    with pytest.raises(OperatorError) as caught:
        build_engine(name, dtype="float32", batch=1)
    assert (caught.value.code, "hf" in caught.value.fix) == ("bad_engine", True)


def show_accelerator(patch: pytest.MonkeyPatch, name: str = HOPPER) -> None:
    """Make torch find one accelerator, cuda:0."""

    def get_name(device: str) -> str:
        if device not in {"cuda", "cuda:0"}:
            raise AssertionError("Invalid device id")
        return name

    patch.setattr(torch.cuda, "get_device_name", get_name)


FAKE_TORCH = """
from types import SimpleNamespace as Space
def get_name(device):
    if device == "cuda:9":
        raise RuntimeError("no such device")
    return f"device {device} of its own"
get_device_module = lambda device: Space(get_device_name=get_name)
backends = Space(cpu=Space(get_cpu_capability=lambda: "MMX"))
"""


def write_python(folder: Path, **versions: str) -> Path:
    """Write a script that runs this Python, but finds the libraries of `folder` first."""
    for name, version in versions.items():
        distribution = folder / f"{name}-{version}.dist-info"
        distribution.mkdir()
        (distribution / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.parametrize("role", ["worker", "validator"])
def test_require_engine__another_python_with_another_covey__names_the_version_to_install(
    tmp_path: Path, role: str
) -> None:
    ours = metadata.version("covey")
    python = write_python(tmp_path, vllm="0.32.0")
    rules = VerificationParams(worker_engine="vllm", validator_engine="vllm")
    require = partial(
        require_engine, "vllm", rules, role=role, dtype="float32", device="cpu", vllm=VllmOptions(interpreter=python)
    )
    require()
    write_python(tmp_path, covey=ours + "1")
    with pytest.raises(OperatorError, match=f"{python} has covey {ours}1, but this process has covey {ours}") as caught:
        require()
    assert (caught.value.code, caught.value.fix) == ("wrong_build", f"Install covey {ours} in {python}")


def test_describe_contract__another_python__has_all_that_decides_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = write_python(tmp_path, vllm="0.32.0", torch="2.13.0", triton="3.6.0")
    monkeypatch.setattr(factory, "describe_hardware", lambda device, mode, _: f"{device}, {mode}")
    describe = partial(describe_contract, dtype="bfloat16", python=python)
    common = {"engine_version": "0.32.0", "torch": "2.13.0", "dtype": "bfloat16", "head_dtype": "float32"}
    assert describe(VllmOptions(), device="cpu") == make_contract(
        **common,
        attention_backend="CPU_ATTN",
        attention_version="vllm 0.32.0",
        architecture="cpu, exact",
        batch_invariant=False,
        block_size=32,
        threads=1,
    )
    assert describe(VllmOptions(block_size=64), device="cpu", threads=3).model_dump().items() >= {
        ("block_size", 64),
        ("threads", 3),
    }
    gpu = make_contract(**common, architecture="cuda, exact")  # graphs have to be asked for in the exact lane
    assert describe(VllmOptions(), device="cuda", threads=3) == gpu
    options = VllmOptions(
        enable_prefix_caching=False,
        block_size=16,
        enforce_eager=False,
        tensor_parallel_size=2,
        attention_backend="FLASH_ATTN",
    )
    assert describe(options, device="cuda") == gpu.model_copy(
        update={
            "compilation": "compiled",
            "enable_prefix_caching": False,
            "block_size": 16,
            "tensor_parallel_size": 2,
            "attention_backend": "FLASH_ATTN",
            "attention_version": "vllm 0.32.0",
        }
    )


OURS = make_contract()


@pytest.mark.parametrize(
    ("rules", "vllm", "expected"),
    [
        (make_exact(OURS), {}, OURS),
        (make_exact(make_contract(torch="1.0"), OURS), {"exact": True}, OURS),
        (make_exact(OURS, mode="calibrated"), {}, OURS),
        (make_exact(OURS, mode="calibrated"), {"exact": False}, None),
        (make_exact(make_contract(torch="1.0"), mode="calibrated"), {}, None),
        ({}, {"exact": True}, None),
        (make_exact(OURS), {"exact": False}, "wrong_contract: this pool accepts exact work only, but vllm.exact is "),
        (
            make_exact(make_contract(torch="1.0", sampler=2), make_contract(torch="1.0")),
            {},
            r"wrong_contract: .* has torch 1\.0 instead of 2\.13\.0\+cu130. Install",
        ),
    ],
)
@pytest.mark.parametrize("role", ["worker", "validator"])
def test_require_engine__pool_with_contracts__says_which_lane(
    monkeypatch: pytest.MonkeyPatch,
    role: str,
    rules: dict[str, Any],
    vllm: dict[str, Any],
    expected: ExecutionContract | str | None,
) -> None:
    monkeypatch.setattr(factory, "describe_contract", lambda *_, **__: OURS)
    params, options = VerificationParams(**rules), VllmOptions(**vllm)
    require = partial(require_engine, "vllm", params, role=role, dtype="float32", device="cpu", vllm=options)
    if isinstance(expected, str):
        with pytest.raises(OperatorError, match=expected):
            require()
    else:
        assert require() == expected


@pytest.mark.parametrize(("contract", "is_exact"), [(OURS, True), (make_contract(torch="1.0"), False)])
def test_plan_engine__lane__decides_whether_the_engine_is_exact(
    monkeypatch: pytest.MonkeyPatch, contract: ExecutionContract, is_exact: bool
) -> None:
    built = []
    monkeypatch.setattr(factory, "build_engine", lambda name, **values: built.append((name, values)))
    threads = []
    monkeypatch.setattr(factory, "describe_contract", lambda *_, **values: threads.append(values["threads"]) or OURS)
    files = {"home": Path("h"), "deployment": Path("d"), "key_file": Path("k")}
    config = WorkerConfig(**files, pool=1, engine="vllm", threads=3)
    rules = make_exact(contract, mode="calibrated")
    plan = plan_engine(config, make_model_params(verification=rules), role="worker", call_seconds=7)
    plan.build()
    assert (plan.name, plan.contract) == ("vllm", OURS if is_exact else None)
    ((name, values),) = built
    assert threads == [values["threads"]] == [3]
    assert (name, values["vllm"].exact, values["vllm"].call_seconds) == ("vllm", is_exact, 7)


@pytest.mark.parametrize(
    ("changes", "vllm", "serves"),
    [
        ({}, {}, True),
        ({}, {"max_model_len": 32, "call_seconds": 5.0}, True),
        ({}, {"max_model_len": 65}, False),
        ({}, {"enforce_eager": True}, False),
        ({"dtype": "bfloat16"}, {}, False),
        ({"contract": OURS}, {}, False),
        ({"batch": 5}, {}, False),
    ],
)
def test_serves__engine_of_another_pool__only_if_it_works_in_the_same_way(
    changes: dict[str, Any], vllm: dict[str, Any], serves: bool
) -> None:
    options = VllmOptions(max_model_len=64)
    plan = EnginePlan(name="vllm", dtype="float32", batch=4, device="cpu", threads=1, vllm=options, contract=None)
    other = dataclasses.replace(plan, **changes, vllm=options.model_copy(update=vllm))
    assert plan.serves(other) is serves


COMPILED, EAGER, MODEL, CALIBRATED = (None, None), (True, None), (True, "model"), "calibrated"
NOT_EXACT = OperatorError("not_exact", "a layer differs", fix="Do nothing")


@pytest.mark.parametrize(
    ("device", "vllm", "failures", "seen", "code"),
    [
        ("cuda", {}, 0, [COMPILED], ""),
        ("cuda", {}, 1, [COMPILED, EAGER], ""),
        ("cuda", {}, 3, [COMPILED, EAGER, MODEL, CALIBRATED], ""),
        ("cuda", {"exact": True}, 3, [COMPILED, EAGER, MODEL], "not_exact: a layer differs"),
        ("cuda", {"exact": True, "enforce_eager": False}, 2, [(False, None), (False, "model")], "not_exact"),
        ("cpu", {"head_dtype": "model"}, 1, [(None, "model"), CALIBRATED], ""),
    ],
)
def test_run_in_lane__engine_is_not_exact__runs_in_the_next_mode(
    device: str, vllm: dict[str, Any], failures: int, seen: list[object], code: str
) -> None:
    asked: list[object] = []

    def run(options: VllmOptions) -> None:
        is_calibrated = options.exact is False
        asked.append(CALIBRATED if is_calibrated else (options.enforce_eager, options.head_dtype))
        if len(asked) <= failures:
            raise NotExactError(NOT_EXACT, options.list_exact(device, "bfloat16")[0])

    if code:
        with pytest.raises(OperatorError, match=code) as caught:
            run_in_lane(VllmOptions(**vllm), run)
        assert caught.value.fix == "Do nothing"
    else:
        run_in_lane(VllmOptions(**vllm), run)
    assert asked == seen


def test_run_in_lane__another_error__is_raised() -> None:
    def run(vllm: VllmOptions) -> None:
        raise OperatorError("no_memory", "it happened", fix="Do nothing")

    with pytest.raises(OperatorError, match="no_memory"):
        run_in_lane(VllmOptions(), run)


@pytest.mark.parametrize(
    ("device", "dtype", "vllm", "expected"),
    [
        (
            "cuda",
            "bfloat16",
            {},
            [("compiled", "float32"), ("eager", "float32"), ("compiled", "model"), ("eager", "model")],
        ),
        ("cuda", "float32", {"head_dtype": "float32"}, [("compiled", "model"), ("eager", "model")]),
        ("cuda", "bfloat16", {"enforce_eager": True, "head_dtype": "float32"}, [("eager", "float32")]),
        ("cpu", "bfloat16", {}, [("eager", "float32"), ("eager", "model")]),
    ],
)
def test_list_contracts__modes_that_are_not_set__graphs_and_float32_logits_come_first(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    dtype: str,
    vllm: dict[str, Any],
    expected: list[tuple[str, str]],
) -> None:
    python = write_python(tmp_path, vllm="0.32.0", torch="2.13.0", triton="3.6.0")
    monkeypatch.setattr(factory, "describe_hardware", lambda device, mode, _: f"{device}, {mode}")
    contracts = list_contracts(VllmOptions(**vllm), device=device, dtype=dtype, python=python)
    assert [(each.compilation, each.head_dtype) for each in contracts] == expected
    for contract in contracts:
        options = choose_options(VllmOptions(**vllm), contract)
        assert describe_contract(options, device=device, dtype=dtype, python=python) == contract


def test_require_engine__pool_lists_the_second_mode__is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "describe_contract", lambda *_, **__: OURS)
    rules = VerificationParams(**make_exact(OURS.model_copy(update={"head_dtype": "float32"})))
    found = require_engine("vllm", rules, role="worker", dtype="bfloat16", device="cuda")
    assert found is not None
    assert (found.compilation, found.head_dtype) == ("eager", "float32")
    assert require_engine("vllm", VerificationParams(**make_exact(OURS)), role="worker", dtype="float32", device="cpu")


def test_require_engine__hardware_of_another_python__is_asked_there(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    python = write_python(tmp_path, vllm="0.32.0")
    for engine, message in (("vllm", "device cuda:0 of its own"), ("hf", "cuda:0 cannot be used")):
        rules = VerificationParams(worker_engine=engine, hardware=HOPPER)
        with pytest.raises(OperatorError, match=message):
            require_engine(
                engine, rules, role="worker", dtype="float32", device="cuda:0", vllm=VllmOptions(interpreter=python)
            )


def test_require_engine__is_apart__asks_torch_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    monkeypatch.setattr(sys, "executable", str(write_python(tmp_path)))
    rules = VerificationParams(worker_engine="hf", hardware=HOPPER)
    with pytest.raises(OperatorError, match="not device cuda:0 of its own"):
        require_engine("hf", rules, role="worker", dtype="float32", device="cuda:0", is_apart=True)


@pytest.mark.parametrize(("name", "wanted"), [("hf", "hf"), ("hf", "any"), ("vllm", "vllm"), ("another", "any")])
def test_require_engine__thresholds_hold_for_it__returns(name: str, wanted: str) -> None:
    rules = VerificationParams(worker_engine=wanted, validator_engine="vllm" if wanted == "hf" else "hf")
    require_engine(name, rules, role="worker", dtype="float32", device="no device: hardware is not asked for")


@pytest.mark.parametrize(("name", "wanted"), [("hf", "vllm"), ("vllm", "hf"), ("any", "hf"), ("", "hf")])
def test_require_engine__thresholds_hold_for_another__names_it_and_the_role(name: str, wanted: str) -> None:
    with pytest.raises(OperatorError) as caught:
        require_engine(
            name, VerificationParams(validator_engine=wanted), role="validator", dtype="float32", device="cpu"
        )
    assert caught.value.code == "wrong_engine"
    assert f"requires validators to run on the engine {wanted}" in caught.value.message
    assert wanted in caught.value.fix


@pytest.mark.parametrize(
    ("rules", "device", "message"),
    [
        ({"hardware": "cpu"}, "cpu", ""),
        ({"hardware": HOPPER}, "cuda", ""),
        ({"hardware": "cpu"}, "cuda", f"wrong_hardware: .* workers to run on the hardware cpu, not {HOPPER}"),
        ({"hardware": HOPPER}, "cpu", f"wrong_hardware: .* workers to run on the hardware {HOPPER}, not cpu"),
        ({"hardware": "NVIDIA H200"}, "cuda:0", f"wrong_hardware: .* on the hardware NVIDIA H200, not {HOPPER}"),
        ({"hardware": HOPPER}, "cuda:7", "bad_device: the device cuda:7 cannot be used: Invalid device id"),
    ],
)  # fmt: skip
def test_require_engine__hardware__is_that_of_the_thresholds(
    monkeypatch: pytest.MonkeyPatch, rules: dict[str, str], device: str, message: str
) -> None:
    show_accelerator(monkeypatch)
    require = partial(require_engine, "hf", VerificationParams(**rules), role="worker", dtype="float32", device=device)
    if not message:
        require()
        return
    with pytest.raises(OperatorError, match=message):
        require()


def join(params: PoolParams) -> SimpleNamespace:
    """Return a network that accepts this wallet. The parts that a role needs after its engine are missing."""
    return SimpleNamespace(
        pool=1,
        params=params,
        wallet=SimpleNamespace(address="0x1"),
        terms=SimpleNamespace(validator_bond=0, unbond_window=60),
        contracts=SimpleNamespace(
            nodes=SimpleNamespace(contributor_of=lambda pool, node: "0x2"),
            pools=SimpleNamespace(is_validator=lambda pool, who: True),
            stakes=SimpleNamespace(stake_of=lambda pool, kind, who: 0),
        ),
    )


@pytest.mark.parametrize(
    ("rules", "device", "message"),
    [
        (
            {"{role}_engine": "vllm"},
            "cpu",
            "wrong_engine: this pool requires {role}s to run on the engine vllm, not hf",
        ),
        (
            {"hardware": "cpu"},
            "cuda",
            "wrong_hardware: this pool requires {role}s to run on the hardware cpu, not " + HOPPER,
        ),
    ],
    ids=["engine", "hardware"],
)
@pytest.mark.parametrize("role", ["worker", "validator"])
def test_roles__pool_calibrated_for_something_else__refuse_to_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, role: str, rules: dict[str, str], device: str, message: str
) -> None:
    show_accelerator(monkeypatch)
    pair = {"worker_engine": "hf", "validator_engine": "hf"}
    network = join(make_model_params(verification=pair | {k.format(role=role): v for k, v in rules.items()}))
    files = {"home": tmp_path, "deployment": tmp_path / "d", "key_file": tmp_path / "k"}
    settings = {**files, "pool": 1, "device": device, "engine": "hf"}
    tools: dict[str, Any] = {"environment": None, "grade": None, "stop": asyncio.Event()}
    if role == "worker":
        start = partial(worker_app.build, WorkerConfig(**settings), network, **tools)
    else:
        start = partial(validator_app.build, ValidatorConfig(**settings), network, **tools, decoder=None)
    with pytest.raises(OperatorError, match=message.format(role=role)):
        start()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "rules", "installed", "worker", "validator"),
    [
        ("hf", {"worker_engine": "vllm", "validator_engine": "vllm"}, True, "hf", "hf"),
        ("auto", {"worker_engine": "vllm", "validator_engine": "hf"}, False, "vllm", "hf"),
        ("auto", {"worker_engine": "hf", "validator_engine": "vllm"}, True, "hf", "vllm"),
        ("auto", {}, True, "vllm", "hf"),
        ("auto", {}, False, "hf", "hf"),
    ],
)
def test_choose_engine__by_hand(
    monkeypatch: pytest.MonkeyPatch, setting: str, rules: dict[str, str], installed: bool, worker: str, validator: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "a spec" if installed else None)
    params = VerificationParams(**rules)
    names = [choose_engine(setting, params, role=role) for role in ("worker", "validator")]
    assert names == [worker, validator]


def test_choose_engine__vllm_in_another_python__is_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert (
        choose_engine("auto", VerificationParams(), role="worker", interpreter=Path("/opt/vllm/bin/python")) == "vllm"
    )
