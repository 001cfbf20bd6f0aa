import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from covey.engines.installation import ask_for_accelerators, describe_build, describe_hardware, list_versions
from covey.errors import OperatorError

pytestmark = pytest.mark.unit
HOPPER = "NVIDIA H100 80GB HBM3"
NAMES = ("covey", "torch", "transformers")
BUILD = ", ".join(f"{name} {metadata.version(name)}" for name in NAMES)


def show_accelerator(patch: pytest.MonkeyPatch, name: str = HOPPER) -> None:
    """Make torch find one accelerator, cuda:0."""

    def get_name(device: str) -> str:
        if device not in {"cuda", "cuda:0"}:
            raise AssertionError("Invalid device id")
        return name

    patch.setattr(torch.cuda, "get_device_name", get_name)


@pytest.mark.parametrize(("device", "expected"), [("cpu", "cpu"), ("cpu:0", "cpu"), ("cuda:0", HOPPER), ("mps", "mps")])
def test_describe_hardware__device__is_its_class(monkeypatch: pytest.MonkeyPatch, device: str, expected: str) -> None:
    show_accelerator(monkeypatch)
    assert describe_hardware(device) == expected


def test_describe_hardware__cpu_in_the_exact_mode__is_the_processor_and_its_instruction_set() -> None:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name, _, instructions = describe_hardware("cpu", "exact").rpartition(", ")
    assert name == names[0].partition(": ")[2][:48].strip()
    assert instructions == torch.backends.cpu.get_cpu_capability()


@pytest.mark.parametrize("device", ["cuda:7", "gpu", "", "meta"])
def test_describe_hardware__missing_device__is_reported(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    show_accelerator(monkeypatch)
    with pytest.raises(OperatorError, match="cannot be used") as caught:
        describe_hardware(device)
    assert (caught.value.code, "\n" in caught.value.message) == ("bad_device", False)


def test_describe__cpu__imports_no_torch() -> None:
    code = (
        "import sys; from covey.engines.installation import describe_build as b, describe_hardware as h; "
        "print(h('cpu'), b('hf'), 'torch' in sys.modules, sep='|')"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert completed.stdout == f"cpu|{BUILD}|False\n"


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


def test_list_versions__another_python__are_its_versions(tmp_path: Path) -> None:
    python, here = write_python(tmp_path, vllm="9.8.7"), list_versions("hf")
    assert list_versions("vllm", python) == {"covey": here["covey"], "vllm": "9.8.7", "torch": here["torch"]}


@pytest.mark.parametrize("name", ["/nowhere/python", "/bin/false"])
def test_list_versions__python_without_covey__is_reported(name: str) -> None:
    with pytest.raises(OperatorError, match="did not report its hardware or libraries") as caught:
        list_versions("vllm", Path(name))
    assert caught.value.code == "bad_engine"
    with pytest.raises(OperatorError, match=name) as caught:
        describe_hardware("cpu", "exact", Path(name))
    assert caught.value.code == "bad_device"


def test_describe_hardware__another_python__asks_its_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    python = write_python(tmp_path)
    assert describe_hardware("cuda:1", interpreter=python) == "device cuda:1 of its own"
    name = describe_hardware("cpu", "exact").rpartition(", ")[0]
    assert describe_hardware("cpu", "exact", python) == f"{name}, MMX"
    assert describe_hardware("cpu", interpreter=Path("/nowhere")) == "cpu"
    with pytest.raises(OperatorError, match="cuda:9 cannot be used: no such device") as caught:
        describe_hardware("cuda:9", interpreter=python)
    assert caught.value.code == "bad_device"


FAKE_GPUS = """
class cuda:
    device_count = staticmethod(lambda: 2)
    get_device_name = staticmethod(lambda i: ("NVIDIA L4", "NVIDIA H200")[i])

class module:
    mem_get_info = staticmethod(lambda device: (1, {"cuda:0": 24, "cuda:1": 141}[device]))

def get_device_module(device):
    return module
"""


def test_ask_for_accelerators__two_gpus__are_named_with_their_memory_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(FAKE_GPUS)
    monkeypatch.setattr(sys, "executable", str(write_python(tmp_path)))
    assert ask_for_accelerators() == [("NVIDIA L4", 24), ("NVIDIA H200", 141)]
    (tmp_path / "torch.py").write_text("raise RuntimeError('the driver is too old')")
    with pytest.raises(OperatorError, match=r"bad_device: .*the driver is too old"):
        ask_for_accelerators()


@pytest.mark.parametrize("name", ["any", "another"])
def test_describe_build__unknown_engine__is_reported(name: str) -> None:
    with pytest.raises(OperatorError, match=f"bad_engine: there is no inference engine called {name}"):
        describe_build(name)
