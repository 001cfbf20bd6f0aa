"""Files of results: what they keep, which one belongs to a machine, and what describes a processor."""

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from benchmarks.measurement import Bar, Measurement
from benchmarks.results import BenchmarkResult, Machine, describe_processor, encode, read, save

pytestmark = pytest.mark.unit

DESCRIBE_COMMIT = results.describe_commit  # before the fixture of all tests replaces it
MACHINE = Machine(processor="AMD EPYC, family 25, AVX-512", cores=2, memory_gb=16)
RESULT = BenchmarkResult(
    date="2026-11-25",
    commit="92e42ca",
    command='make bench NAME=some ARGS="--runs 1"',
    note="A sentence.",
    measurements=(
        Measurement(name="speed", value=1.25, unit="times", n=3, peer="toploc 0.1.6", bar=Bar(least=1)),
        Measurement(name="difference", value=-0.006, unit="reward", n=5, bar=Bar(least=-0.02, most=0.02)),
        Measurement(name="windows", value=30_747, unit="count", n=30_747),
    ),
)


def test_encode__a_result__is_read_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text(encode(MACHINE, {"some": RESULT, "other": replace(RESULT, note="", python="3.12.1")}))
    assert read(path) == (MACHINE, {"some": RESULT, "other": replace(RESULT, note="", python="3.12.1")})


def test_encode__a_measurement__has_one_line_without_what_is_empty() -> None:
    lines = encode(MACHINE, {"some": RESULT}).splitlines()
    assert '    {"name": "windows", "value": 30747, "unit": "count", "n": 30747}' in lines


def test_encode__fraction_with_many_digits__has_seven(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    measurement = replace(RESULT.measurements[0], value=14.310791015625)
    path.write_text(encode(MACHINE, {"some": replace(RESULT, measurements=(measurement,))}))
    assert read(path)[1]["some"].measurements[0].value == 14.31079


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_encode__value_that_json_lacks__becomes_null(tmp_path: Path, value: float) -> None:
    path = tmp_path / "some.json"
    path.write_text(
        encode(MACHINE, {"some": replace(RESULT, measurements=(replace(RESULT.measurements[0], value=value),))})
    )
    assert json.loads(path.read_text())["benchmarks"]["some"]["measurements"][0]["value"] is None
    assert math.isnan(read(path)[1]["some"].measurements[0].value)


def test_save__a_second_result__replaces_that_of_the_same_benchmark_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    newer = replace(RESULT, date="2026-11-26")
    for name, result in (("some", RESULT), ("other", RESULT), ("some", newer)):
        path = save(name, result, MACHINE)
    assert path.name == "amd-epyc-family-25-avx-512-2-cores.json"
    assert read(path) == (MACHINE, {"some": newer, "other": RESULT})


def test_slug__gpu__is_part_of_it() -> None:
    machine = Machine(processor="Intel Xeon, family 6, AMX", cores=16, gpu="NVIDIA H100 80GB HBM3")
    assert machine.slug == "intel-xeon-family-6-amx-16-cores-nvidia-h100-80gb-hbm3"


@pytest.mark.parametrize(
    ("model", "flags", "description"),
    [
        ("Intel(R) Xeon(R) Processor", "sse avx2 avx512f amx_tile", "Intel Xeon, family 6, AMX"),
        ("Intel(R) Xeon(R) CPU @ 2.80GHz", "sse avx2 avx512f", "Intel Xeon, family 6, AVX-512"),
        ("AMD EPYC 9654 96-Core Processor", "sse avx2", "AMD EPYC 9654, family 6, AVX2"),
        ("AMD EPYC", "sse", "AMD EPYC, family 6"),
    ],
)
def test_describe_processor__lines_of_the_kernel__are_name_family_and_widest_extension(
    model: str, flags: str, description: str
) -> None:
    lines = [f"model name\t: {model}", "cpu family\t: 6", f"flags\t\t: {flags}", "", "model name\t: another"]
    assert describe_processor(lines) == description


def test_describe_processor__no_lines__is_empty() -> None:
    assert describe_processor([]) == ""


def test_build_result__this_run__has_the_day_and_a_command_that_repeats_it() -> None:
    result = results.build_result("some", RESULT.measurements, ["--size", "a b"])
    assert result.command == "make bench NAME=some ARGS=\"--size 'a b'\""
    assert result.measurements == RESULT.measurements
    assert len(result.date) == 10


@pytest.mark.parametrize(("code", "commit"), [(0, "92e42ca-dirty"), (128, "")])
def test_describe_commit__repository_or_none__is_what_git_prints(
    code: int, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, "92e42ca-dirty\n" if code == 0 else "")

    monkeypatch.setattr(results.subprocess, "run", run)
    assert DESCRIBE_COMMIT() == commit


def test_describe_commit__no_git__is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(results.subprocess, "run", run)
    assert DESCRIBE_COMMIT() == ""
