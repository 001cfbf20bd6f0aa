"""A trainer's folder, servers and clients for the benchmarks of policy broadcast.

Files lie in a memory file system where there is one, so that the disk is not measured.  Servers are the shipped
commands, and clients run in fresh processes.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

from covey.chain.wallet import wallet_from_key
from covey.errors import OperatorError
from covey.protocol.eip712 import Domain
from covey.protocol.head import Head
from covey.protocol.ids import ZERO_HASH, Address, Hash, PoolId, Step
from covey.protocol.policy_record import WEIGHTS_FILE, TensorRow
from covey.shardcast.downloader import Downloader
from covey.shardcast.offering import Export, Offering
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.policy_export import build_row, write_weights
from covey.shardcast.policy_fetch import PolicyClient
from covey.shardcast.policy_source import PolicySource
from covey.shardcast.policy_store import PolicyStore
from covey.shardcast.reachability import PolicyRetention

POOL = PoolId(1)
TRAINER = wallet_from_key(b"\x07" * 32)
DOMAIN = Domain(chain_id=31337, contract=Address(TRAINER.address))
TENSOR_VALUES = 12_582_912
"""Number of values of a large tensor, 24 MiB in bfloat16.  One of 1,024 values follows each, as norms do."""
LEARNING_RATE = 1e-6
_START_S = 60.0
_PREVIEW_SECONDS = 0.01
"""Time between two looks at the preview.  A worker looks as often as its settings say while it has nothing else to do.
"""

Bits = NDArray[np.uint16]


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder in memory and remove it at the end."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="covey-bench-", dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def build_weights(size: int) -> dict[str, NDArray[np.float32]]:
    """Return tensors with normally distributed values that have `size` bytes in bfloat16."""
    generator, left = np.random.default_rng(1), size // 2
    weights: dict[str, NDArray[np.float32]] = {}
    while left:
        for values in (TENSOR_VALUES, 1024):
            count = min(values, left)
            if count:
                weights[f"tensor{len(weights):04}"] = generator.standard_normal(count, np.float32) * np.float32(0.02)
                left -= count
    return weights


def take_step(weights: Mapping[str, NDArray[np.float32]], seed: int) -> None:
    """Move every weight by the learning rate in a random direction, as Adam does."""
    generator = np.random.default_rng(seed)
    for values in weights.values():
        signs = np.sign(generator.standard_normal(values.shape, np.float32))
        np.subtract(values, np.float32(LEARNING_RATE) * signs, out=values)


def to_bfloat16(values: NDArray[np.float32]) -> Bits:
    """Round to bfloat16 and return the bits."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class TrainerFolder:
    """Exports and offers policies as a trainer does."""

    def __init__(self, root: Path, *, anchor_every: int = 1000) -> None:
        self.root, self.origin = root, root / "origin"
        self.records: list[Hash] = []
        self._offering = Offering(
            OriginStore(self.origin),
            pool=POOL,
            domain=DOMAIN,
            signer=TRAINER,
            retention=PolicyRetention(keep=5),
            anchor_every=anchor_every,
            threads=os.cpu_count() or 1,
        )

    def export(self, tensors: Mapping[str, Bits], files: Path | None = None, *, is_previewed: bool = False) -> Path:
        """Write the next policy with the small files in the folder `files`, and return its folder.

        With `is_previewed` its pieces are served while they are written.
        """
        folder = self.root / "exports" / str(len(self.records))
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        for path in files.iterdir() if files is not None else ():
            if path.name != WEIGHTS_FILE:
                shutil.copyfile(path, folder / path.name)

        def read(row: TensorRow) -> memoryview:
            return tensors[row.name].reshape(-1).view(np.uint8).data

        rows = [build_row(name, "BF16", bits.shape) for name, bits in tensors.items()]
        step = len(self.records)
        preview = partial(self._offering.open_preview, step) if is_previewed else (lambda _: None)
        write_weights(folder, rows, read, threads=os.cpu_count() or 1, open_preview=preview)
        self._offering.checks.record(folder)  # As a trainer does, so that its origin need not hash it again.
        return folder

    def read_head(self) -> Head:
        """Return the head of the origin."""
        head = self._offering.store.read_head(POOL)
        assert head is not None
        return head

    def offer(self, folder: Path, *, as_anchor: bool = False) -> Hash:
        """Offer an exported policy, as a delta if there is a previous one.  Returns the hash of its record."""
        step = Step(len(self.records))
        record = self._offering.describe(folder, step, self.records[-1] if step else ZERO_HASH)
        base = self.root / "exports" / str(step - 1)
        self._offering.offer(Export(folder, record), base if step and not as_anchor else None)
        self.records.append(record.compute_hash())
        return self.records[-1]


@contextmanager
def serve(*arguments: str, url: str, wrap: Callable[..., list[str]] | None = None) -> Iterator[int]:
    """Run `covey origin run` or `covey relay run` until the end of the block, and yield the id of its process.

    `wrap` changes the command.
    """
    command = [sys.executable, "-m", "covey", *arguments]
    process = subprocess.Popen(wrap(*command) if wrap else command, stderr=subprocess.DEVNULL)
    try:
        await_answer(url, process, wrap)
        yield process.pid
    finally:
        process.terminate()
        process.wait(10)


def await_answer(
    url: str,
    process: subprocess.Popen[bytes],
    wrap: Callable[..., list[str]] | None = None,
    *,
    seconds: float = _START_S,
) -> None:
    """Wait until a server answers a GET request.  Raises OperatorError("no_server")."""
    deadline = time.monotonic() + seconds
    ask = [sys.executable, "-c", "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=1)", url]
    while time.monotonic() < deadline and process.poll() is None:
        if wrap is not None:
            if subprocess.run(wrap(*ask), capture_output=True, check=False, timeout=10).returncode == 0:
                return
        else:
            with suppress(URLError, OSError), urlopen(url, timeout=1):
                return
        time.sleep(0.1)
    raise OperatorError("no_server", f"{url} did not answer", fix="Look at the output of the command")


def start_fetch(
    root: Path, urls: Sequence[str], record: Hash, *, step: int, wrap: Callable[..., list[str]] | None = None
) -> subprocess.Popen[str]:
    """Start a process that fetches a policy into the folder `root`.  `end_fetch` returns its result."""
    return _start_client({"root": str(root), "urls": list(urls), "record": record, "step": step}, wrap)


def start_prefetch(root: Path, urls: Sequence[str]) -> subprocess.Popen[str]:
    """Start a process that fetches what is previewed, and wait until it has begun.

    It fetches the policy once `name_policy` says which.
    """
    process = _start_client({"root": str(root), "urls": list(urls), "record": None, "step": 0})
    assert process.stdout is not None
    process.stdout.readline()
    return process


def name_policy(process: subprocess.Popen[str], record: Hash) -> None:
    """Tell a process of `start_prefetch` which record is on chain.  `end_fetch` returns its result."""
    assert process.stdin is not None
    process.stdin.write(f"{record}\n")
    process.stdin.flush()


def _start_client(values: Mapping[str, object], wrap: Callable[..., list[str]] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.network.broadcast", json.dumps(values)]
    return subprocess.Popen(
        wrap(*command) if wrap else command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def end_fetch(process: subprocess.Popen[str], *, seconds: float = 900.0) -> dict[str, float]:
    """Return the duration in seconds and the peak memory in bytes of a process of `start_fetch`."""
    output, _ = process.communicate(timeout=seconds)
    if process.returncode:
        raise OperatorError("child_failed", "the client failed", fix="Look at its output above")
    values: dict[str, float] = json.loads(output.splitlines()[-1])
    return values


def build_client(root: Path, urls: Sequence[str]) -> PolicyClient:
    """Return a client of the benchmark's pool."""
    source = PolicySource(Downloader(urls), pool=POOL, domain=DOMAIN, trainer=Address(TRAINER.address))
    return PolicyClient(source, PolicyStore(root, keep=5))


def main(values: str) -> None:
    """Fetch one policy and print the duration and the peak memory."""
    asked = json.loads(values)
    shutil.rmtree(asked["root"], ignore_errors=True)
    client = build_client(Path(asked["root"]), asked["urls"])
    record = asked["record"] or _prefetch(client)
    started = time.monotonic()
    client.fetch(Step(asked["step"]), Hash(record))
    seconds = time.monotonic() - started
    peak = _read_peak()
    print(json.dumps({"seconds": seconds, "peak": peak, "ended": time.time(), "at": time.monotonic()}))


def _prefetch(client: PolicyClient) -> str:
    """Fetch what is previewed until a record is named on standard input, and return that."""
    print("begun", flush=True)
    while not select.select([sys.stdin], [], [], _PREVIEW_SECONDS)[0]:
        client.prefetch(threading.Event())
    return sys.stdin.readline().strip()


def _read_peak() -> int:
    """Return the peak memory of this process in bytes.  `ru_maxrss` would include that of the parent before exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))


if __name__ == "__main__":
    main(sys.argv[1])
