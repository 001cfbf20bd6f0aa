"""A grading pool over a mixture of four kinds, and checks of what its processes leave."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.verification.grading_cases import build_spec
from covey.environments.base import EnvironmentSpec, Reply
from covey.environments.grader import GradingPool
from covey.environments.registry import load
from covey.protocol.params import GradingParams
from covey.runtime.settings import SandboxSettings
from covey.sandbox import find_isolation
from tests.fakes.hostile_answers import SECRET, SECRET_NAME, HostileAnswer, list_hostile

KINDS = ("math", "code", "short_answer", "reasoning_gym")
MIXTURE = EnvironmentSpec(
    kind="mixture",
    options={
        "parts": [{"weight": 1, "kind": kind, "options": dict(build_spec(kind).options)} for kind in KINDS],
    },
)


def mark(kind: str, reply: Reply) -> Reply:
    """Mark a reply to a prompt of one kind as the mixture does."""
    return replace(reply, verification={"part": KINDS.index(kind), "of_part": dict(reply.verification)})


@contextmanager
def open_mixture(*, cpu_seconds: float) -> Iterator[GradingPool]:
    """Open two grading processes of the mixture with tight limits."""
    if find_isolation().level == "limits":
        pytest.skip("programs of strangers run on no machine that only limits their resources")
    limits = GradingParams(cpu_seconds=cpu_seconds, memory_bytes=256 << 20, processes=16)
    with GradingPool(MIXTURE, load(MIXTURE), limits, SandboxSettings(grading_processes=2)) as pool:
        yield pool


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], HostileAnswer]]:
    """All attacks by kind and name, with targets that they could reach: a file, a variable and a listener."""
    file = tmp_path_factory.mktemp("hostile") / "secret"
    file.write_text(SECRET)
    for folder in (file.parent, *(parent for parent in file.parents if "pytest" in str(parent))):
        folder.chmod(0o755)
    with ExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        patched.setenv(SECRET_NAME, SECRET)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        answers = list_hostile(file, listener.getsockname()[1])
        yield {(answer.kind, answer.name): answer for answer in answers}
        with pytest.raises(BlockingIOError):
            listener.accept()  # no connection arrived


def measure_memory(pool: GradingPool) -> int:
    """Return the bytes of anonymous memory of the pool's zygotes."""
    return sum(_read_anonymous(process) for process in pool._sandbox.process_ids)


def _read_anonymous(process: int) -> int:
    fields = Path(f"/proc/{process}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
