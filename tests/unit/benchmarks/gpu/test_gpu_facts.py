"""Facts of the machine: what nvidia-smi prints, and versions of packages."""

import subprocess

import pytest

from benchmarks.gpu import gpu_facts
from benchmarks.gpu.gpu_facts import GpuFacts, ask_driver, describe_gpu, read_facts, read_version

pytestmark = pytest.mark.unit


def test_describe_gpu__line_of_nvidia_smi__names_card_driver_and_memory() -> None:
    line = "NVIDIA H200, 580.95.05, 143000 MiB, 143771 MiB"
    assert describe_gpu(line) == "NVIDIA H200, driver 580.95.05, 143000 MiB of 143771 MiB free"
    assert describe_gpu("") == "a GPU that nvidia-smi does not describe"


def test_ask_driver__program_that_is_missing__is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def miss(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", miss)
    assert ask_driver() == ""


def test_read_version__packages__are_found_by_what_can_be_imported() -> None:
    assert read_version("torch").startswith("2.")
    assert read_version("covey_ghost") == ""
    assert read_version("benchmarks") == "of an unknown version"


def test_read_facts__without_a_gpu__describes_the_processor(monkeypatch: pytest.MonkeyPatch, commit: str) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(gpu_facts, "ask_driver", lambda: pytest.fail("there is no GPU to ask about"))
    facts = read_facts()
    assert not facts.has_cuda
    assert facts.commit == commit
    assert list(facts.versions) == ["torch", "triton", "transformers", "vllm"]


def test_describe__facts__are_two_lines() -> None:
    facts = GpuFacts(has_cuda=True, device="NVIDIA H200", versions={"torch": "2.13", "triton": ""}, commit="92e42ca")
    assert facts.describe() == "NVIDIA H200, commit 92e42ca\ntorch 2.13, triton is not installed"
