"""What the doctor sees of this machine."""

import importlib.util
import shutil
import socket
from pathlib import Path

import pytest

from covey.cli.doctor import machine_facts
from covey.cli.doctor.machine_facts import find_port_trouble, look_at_engine, look_at_machine
from covey.cli.doctor.snapshot import EngineProbe
from covey.engines.installation import describe_build, measure_memory
from covey.errors import OperatorError
from tests.fakes.pool import make_params
from validator.config import ValidatorConfig
from worker.config import WorkerConfig

pytestmark = pytest.mark.unit

PLACES = {"home": "home", "pool": 1, "deployment": "d.json", "key_file": "k"}
WORKER, VALIDATOR = WorkerConfig(**PLACES), ValidatorConfig(**PLACES)


def test_port__free_or_taken():
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        port = door.getsockname()[1]
        trouble = find_port_trouble("127.0.0.1", port)
        assert trouble is not None
        assert f"127.0.0.1:{port}" in trouble.detail
    assert find_port_trouble("127.0.0.1", port) is None


@pytest.mark.parametrize(("role", "settings"), [("worker", WORKER), ("validator", VALIDATOR)])
def test_look_at_engine__pool_takes_it__is_named_with_its_build(role, settings):
    build = describe_build("hf")
    rules = {"worker_engine": "hf", "validator_engine": "hf", "hardware": "cpu"}
    assert look_at_engine(role, settings, make_params(verification=rules)) == EngineProbe(name="hf", build=build)


@pytest.mark.parametrize(
    ("role", "settings", "rules", "code"),
    [
        ("worker", WorkerConfig(**PLACES, engine="hf"), {"worker_engine": "vllm"}, "wrong_engine"),
        ("validator", ValidatorConfig(**PLACES, engine="hf"), {"validator_engine": "vllm"}, "wrong_engine"),
        ("worker", WORKER, {"worker_engine": "hf", "hardware": "NVIDIA H100 80GB HBM3"}, "wrong_hardware"),
    ],
)
def test_look_at_engine__pool_takes_another__is_refused_as_at_the_start(role, settings, rules, code):
    with pytest.raises(OperatorError) as caught:
        look_at_engine(role, settings, make_params(verification=rules))
    assert caught.value.code == code


@pytest.mark.parametrize(("gpus", "names"), [(None, ["L4", "H200"]), (1, ["L4"]), (0, [])])
def test_look_at_machine__gpus_in_use__are_those_of_the_machine(tmp_path: Path, monkeypatch, gpus, names):
    monkeypatch.setattr(machine_facts, "ask_for_accelerators", lambda: [("L4", 24), ("H200", 141)])
    found = look_at_machine(tmp_path / "not" / "yet", gpus=gpus, bandwidth_mbits=0.5)
    assert [each.name for each in found.accelerators] == names
    assert found.memory_bytes == measure_memory("cpu")
    assert found.free_disk_bytes == pytest.approx(shutil.disk_usage(tmp_path).free, abs=1 << 30)
    assert found.bandwidth_bits == 500_000
    assert look_at_machine(tmp_path, gpus=0, bandwidth_mbits=None).bandwidth_bits is None


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_look_at_engine__engine_of_the_pool_is_not_installed__is_refused():
    with pytest.raises(OperatorError, match="bad_engine: the package vllm is not installed"):
        look_at_engine("worker", WORKER, make_params(verification={"worker_engine": "vllm"}))
