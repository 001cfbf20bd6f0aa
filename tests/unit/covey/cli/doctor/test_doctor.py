"""What `covey doctor` reports of a machine, with libraries that are present, missing or broken."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.cli.doctor import doctor
from covey.engines import factory
from covey.errors import OperatorError
from covey.model.tiny import tiny_folder
from tests.fakes.pool import make_contract

pytestmark = pytest.mark.unit


def run(*arguments: str, path: Path | None = None) -> tuple[int, dict[str, dict[str, object]]]:
    """Return exit code and findings by name. `path` is searched for libraries first."""
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, "-m", "covey", "doctor", "--json", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    return ended.returncode, {finding["name"]: finding for finding in json.loads(ended.stdout)}


def write_vllm(folder: Path, text: str) -> Path:
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").write_text(text)
    device = 'from types import SimpleNamespace\ncurrent_platform = SimpleNamespace(device_type="tpu")\n'
    (folder / "vllm" / "platforms.py").write_text(device)
    return folder


@pytest.mark.parametrize(
    ("version", "detail"),
    [
        ("9.8.7", "vllm 9.8.7 is not one of <0.33,>=0.32"),
        ("0.32.1rc1+tpu", "ModuleNotFoundError: No module named 'vllm.distributed'"),
    ],
)
def test_doctor__vllm_that_covey_does_not_support__is_not_well(tmp_path: Path, version: str, detail: str) -> None:
    code, found = run("--engine", "vllm", path=write_vllm(tmp_path, f'__version__ = "{version}"'))
    assert (code, found["vllm"]["is_well"], found["vllm"]["detail"]) == (1, False, detail)
    assert found["python"]["detail"] == ".".join(map(str, sys.version_info[:3]))
    assert {name for name, each in found.items() if each["is_needed"]} == {
        "python", "torch", "transformers", "numba", "web3", "vllm",
    }  # fmt: skip


@pytest.mark.parametrize(("engine", "code"), [("vllm", 1), ("hf", 0)])
def test_doctor__broken_vllm__is_an_error_only_if_it_is_needed(tmp_path: Path, engine: str, code: int) -> None:
    broken = write_vllm(tmp_path, 'raise ImportError("libcudart.so.12 is missing")')
    ended, found = run("--engine", engine, path=broken)
    assert ended == code
    assert found["vllm"]["detail"] == "ImportError: libcudart.so.12 is missing"
    assert "make vllm-cpu" in str(found["vllm"]["fix"])


def test_doctor__another_interpreter__is_the_one_that_is_asked(tmp_path: Path) -> None:
    code, found = run("--engine", "vllm", "--interpreter", str(tmp_path / "nothing"))
    assert (code, found["vllm"]["is_well"]) == (1, False)
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 7.6.5\n")
    script.chmod(0o755)
    code, found = run("--engine", "vllm", "--interpreter", str(script))
    assert (code, found["vllm"]["detail"]) == (0, "7.6.5")


def test_doctor__another_interpreter_with_another_covey__is_not_well(tmp_path: Path) -> None:
    held = tmp_path / "covey-9.9.9.dist-info"
    held.mkdir()
    (held / "METADATA").write_text("Metadata-Version: 2.1\nName: covey\nVersion: 9.9.9\n")
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    code, found = run("--engine", "vllm", "--interpreter", str(script))
    assert (code, found["vllm"]["is_well"]) == (1, False)
    assert found["vllm"]["detail"] == f"covey 9.9.9 is not {version('covey')}, which asks"


def test_doctor__no_torch__is_said_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    hidden = "import importlib.util, importlib.metadata as m, sys\nfrom covey.cli import doctor\n"
    hidden += "find, version = importlib.util.find_spec, m.version\n"
    hidden += (
        "importlib.util.find_spec = lambda name, *rest: None if name in ('torch', 'vllm') else find(name, *rest)\n"
    )
    hidden += "def hide(name):\n    if name == 'torch': raise m.PackageNotFoundError(name)\n    return version(name)\n"
    hidden += "m.version = hide\nsys.modules['torch'] = None\n"
    hidden += "print([(each.name, each.is_well) for each in doctor._look('hf', None) if each.name != 'vllm'])"
    ended = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=120, check=True)
    assert "('torch', False)" in ended.stdout
    assert "('accelerator', False)" in ended.stdout
    assert "('web3', True)" in ended.stdout


@pytest.mark.parametrize("is_exact", [True, False])
def test_look_at_contract__with_a_model__the_engine_proves_it(monkeypatch: pytest.MonkeyPatch, is_exact: bool) -> None:
    contract, closed = make_contract(), []

    def load(folder: Path, version: int) -> None:
        assert (folder / "model.safetensors").is_file()
        if not is_exact:
            raise OperatorError("not_exact", "layer 3 differs", fix="Use another device")

    engine = SimpleNamespace(load_policy=load, close=lambda: closed.append(True))
    monkeypatch.setattr(factory, "describe_contract", lambda *_, **__: contract)
    monkeypatch.setattr(factory, "build_engine", lambda *_, **__: engine)
    found = {each.name: each for each in doctor._look_at_contract(None, str(tiny_folder()))}
    shown = contract.model_copy(update={"head_dtype": "float32" if is_exact else "model"})  # tried in this order
    assert (found["contract"].is_well, found["contract"].detail) == (True, f"{shown.digest}: {shown.describe()}")
    assert (found["proof"].is_well, "layer 3 differs" in found["proof"].detail) == (is_exact, not is_exact)
    assert closed == [True] * (1 if is_exact else 2)
    (preferred,) = doctor._look_at_contract(None, None)
    assert "float32 logits" in preferred.detail


def test_doctor__proof_without_vllm__is_refused() -> None:
    command = [sys.executable, "-m", "covey", "doctor", "--prove", "model"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, "bad_engine" in ended.stderr) == (1, True)
