"""README and guides as written: every fenced command, in order, in an empty folder, to the first claimed reward.

The README runs always; its chain's clock is moved past the windows that a reader waits for.  The full run waits, and
goes on with the guides and their second contributor.
"""

import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from covey.chain.json_rpc import ChainClient
from covey.local.keeper import stop_keeper
from tests.e2e.fences import LANGUAGES, Fence, read_fences

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
GUIDES = (
    "train-on-one-machine.md",
    "run-a-pool.md",
    "evaluate.md",
    "run-a-relay.md",
    "run-at-scale.md",
    "find-a-pool.md",
    "watch-a-pool.md",
    "run-a-worker.md",
    "bring-a-data-set.md",
    "write-an-environment.md",
    "check-a-machine.md",
    "operate-a-coordinator.md",
    "monitor.md",
    "run-with-containers.md",
    "measure-thresholds.md",
    "filter-questions.md",
    "use-verifiers-tasksets.md",
    "use-vllm.md",
    "measure-a-gpu.md",
    "watch-training.md",
    "choose-an-objective.md",
    "resume-training.md",
    "train-on-several-devices.md",
    "audit-a-verdict.md",
    "use-canaries.md",
    "recover-from-failures.md",
    "respond-to-an-incident.md",
)
"""In the order in which their commands run."""
OWN_MODEL = "your-own-model.md"
"""Guide whose commands `test_own_model` runs, because they need its variables."""
DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs" / "guides" / name for name in GUIDES))
SECONDS = 1200
"""Timeout of one fence."""
PORTS = range(8000, 8005)
"""Ports that the documents name."""


def list_fences() -> list[Fence]:
    return [fence for path in DOCUMENTS for fence in read_fences(path) if fence.language == "sh"]


def test_documents__are_all_guides_and_every_fence_has_a_language():
    guides = {path.name for path in (ROOT / "docs/guides").glob("*.md")}
    assert {path.name for path in DOCUMENTS[1:]} | {OWN_MODEL} == guides
    assert [fence for path in DOCUMENTS for fence in read_fences(path) if fence.language not in LANGUAGES] == []


def test_fences__all_but_these__say_why_they_do_not_run():
    assert Counter(fence.document for fence in list_fences() if not fence.reason) == RUN


RUN = {
    "README.md": 5,
    "train-on-one-machine.md": 5,
    "run-a-pool.md": 3,
    "evaluate.md": 2,
    "find-a-pool.md": 4,
    "watch-a-pool.md": 1,
    "run-a-worker.md": 5,
    "bring-a-data-set.md": 5,
    "watch-training.md": 2,
}
"""Number of fences that run, by document.  All others have a comment with the reason."""


@pytest.fixture
def folder(tmp_path: Path):
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"something listens on port {port}, which the documents name")
    yield tmp_path
    for lock in tmp_path.glob("*/.up.lock"):  # whatever a command that failed has left running
        stop_keeper(lock.parent)


def run_fence(fence: Fence, folder: Path) -> str:
    """What the commands print; they have to succeed."""
    binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": binaries, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", fence.body],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{fence.document}: {fence.body}\n{done.stdout}"
    return done.stdout


def await_accepted(nodes: int, seconds: float) -> None:
    """Until so many nodes have an accepted submission; bounded."""
    deadline = time.monotonic() + seconds
    while True:
        status = httpx.get("http://127.0.0.1:8000/v1/status", timeout=60).json()
        if sum(node["accepted"] > 0 for node in status["nodes"].values()) >= nodes:
            return
        assert time.monotonic() < deadline, status["nodes"]
        time.sleep(0.5)


def pass_windows() -> None:
    """Wait until an epoch is posted, and move the chain past its windows: the quick run does not wait for them."""
    deadline = time.monotonic() + 600
    while not any(
        epoch["posted"] for epoch in httpx.get("http://127.0.0.1:8000/v1/status", timeout=60).json()["epochs"]
    ):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    chain = ChainClient("http://127.0.0.1:8003")
    chain.request("evm_increaseTime", hex(60))
    chain.request("evm_mine")


@pytest.mark.parametrize(
    "documents",
    [
        pytest.param(DOCUMENTS[:1], id="README"),
        pytest.param(DOCUMENTS, id="README and guides", marks=pytest.mark.full),
    ],
)
def test_documents__every_command__works_as_written(folder: Path, documents: tuple[Path, ...]):
    transcript, started, workers = [], time.monotonic(), 0
    for fence in list_fences():
        if fence.reason or fence.document not in {path.name for path in documents}:
            continue
        if "rewards claim --wait" in fence.body and documents == DOCUMENTS[:1]:
            pass_windows()
        printed = run_fence(fence, folder)
        transcript.append((fence.document, fence.body, printed, time.monotonic() - started))
        if re.search(r"covey up \S*worker", fence.body):
            workers += 1
            await_accepted(workers, seconds=600)
    assert workers == (1 if documents == DOCUMENTS[:1] else 2)
    keep_transcript(transcript)
    readme = [entry for entry in transcript if entry[0] == "README.md"]
    (claim,) = [entry for entry in readme if "rewards claim" in entry[1]]
    assert "claimed" in claim[2]
    commands = [line for entry in readme for line in entry[1].splitlines() if line.startswith("covey ")]
    alone = [line for line in commands if line.startswith(("covey train", "covey rollouts", "covey report"))]
    assert len(alone) <= 3
    assert len(commands) - len(alone) <= 8
    assert list(folder.rglob(".up.lock"))
    assert [lock for lock in folder.glob("*/.up.lock") if lock.read_text()] == [], "the documents end what they start"


def keep_transcript(entries: list[tuple[str, str, str, float]]) -> None:
    """Write what was typed and printed to build/, for a reader, and for docs/guides/run-a-pool.md."""
    path = ROOT / "build" / "readme-transcript.txt"
    path.parent.mkdir(exist_ok=True)
    blocks = []
    for document, body, printed, seconds in entries:
        typed = "\n".join(f"$ {line}" for line in body.splitlines())
        blocks.append(f"# {document}, {seconds:.0f} s after the beginning\n{typed}\n{printed}")
    path.write_text("\n".join(blocks))
