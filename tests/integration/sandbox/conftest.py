"""A sandbox of the hostile function at each isolation level that this machine supports, and views of its processes."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from covey.sandbox import LEVELS, CallLimits, Isolation, Level, Sandbox, SandboxError, find_isolation, try_level

HOSTILE = "tests.fakes.hostile:build"
LIMITS = CallLimits(
    cpu_seconds=20.0,
    wall_seconds=120.0,
    memory_bytes=256 << 20,
    output_bytes=1 << 20,
    processes=16,
    scratch_bytes=8 << 20,
)
Build = Callable[..., Sandbox]


def require(level: Level) -> Isolation:
    """Return the isolation level, or skip the test with the reason."""
    trial = try_level(level)
    if trial.isolation is None:
        pytest.skip(f"{level} does not hold here: {trial.reason}")
    return trial.isolation


@pytest.fixture(params=LEVELS)
def isolation(request: pytest.FixtureRequest) -> Isolation:
    return require(request.param)


@pytest.fixture
def build() -> Iterator[Build]:
    """Builds sandboxes at the strongest level, unless `isolation` sets a different one, and closes them afterwards."""
    made: list[Sandbox] = []

    def make(function: str = HOSTILE, *, limits: CallLimits = LIMITS, **options: object) -> Sandbox:
        made.append(Sandbox(function, limits=limits, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.close()


@pytest.fixture
def sandbox(build: Build, isolation: Isolation) -> Sandbox:
    return build(isolation=isolation.level)


@pytest.fixture
def best(build: Build) -> Sandbox:
    find_isolation()
    return build()


def die(sandbox: Sandbox, payload: bytes) -> str:
    """Return the error code with which the call ends."""
    error = sandbox.run(payload).error
    assert isinstance(error, SandboxError), error
    return error.code


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def list_tree(process: int) -> list[int]:
    """Return all descendants of a process, including zombies."""
    found: list[int] = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == process:
            found += [int(name), *list_tree(int(name))]
    return found
