"""The sandbox: warm processes for one function, each of which forks a child process for every call."""

import queue
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from covey.errors import TransientError
from covey.sandbox.call_limits import CallLimits
from covey.sandbox.isolation import Isolation, IsolationSetting, survey
from covey.sandbox.isolation_trials import require_isolation
from covey.sandbox.sandbox_errors import SandboxError
from covey.sandbox.zygote_process import CallOutcome, ZygoteProcess

ATTEMPTS = 2
"""Number of attempts with a peer's input before the input is considered the cause. A busy machine may end one
process, but hardly two in a row.
"""
BUSY_SECONDS = 60.0
"""Seconds that a call waits for a free process before it logs a warning."""
MAX_BUSY_WAITS = 10
"""Number of waits of BUSY_SECONDS each before the call fails."""


class _Slot:
    """Slot for one process, which starts at its first call."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: ZygoteProcess | None = None

    def clear(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None


class Sandbox:
    """Runs a bytes -> bytes function on hostile input. It is thread-safe.

    Example: `with Sandbox("covey.protocol.submission_file.codec:build_decoder") as decoder: decoder.call(payload)`.
    """

    def __init__(
        self,
        function: str,
        *,
        setup: bytes = b"",
        processes: int = 1,
        limits: CallLimits | None = None,
        isolation: IsolationSetting | None = None,
        recycle: int = 1000,
        packages: tuple[str, ...] = (),
        interpreter: Path | None = None,
    ) -> None:
        """Create a sandbox. No process starts before the first call.

        - `function`: "module:attribute" of a factory that takes `setup` and returns the function. Each process calls it
          once.
        - `processes`: Number of concurrent calls.
        - `limits`: Limits of each call. None means the defaults of `CallLimits`.
        - `isolation`: Required isolation level. None means the strongest one that works.
        - `recycle`: Number of calls after which a process is replaced.
        - `packages`: Top-level packages that the function imports from source folders, besides covey and its own.
        - `interpreter`: A different Python for the processes. It must have what the function imports, but not Covey.

        Raises OperatorError("sandbox_isolation") if the isolation level does not work.
        """
        self._function, self._setup, self._recycle, self._isolation = function, setup, recycle, isolation
        if isolation not in {None, "auto"}:
            require_isolation(isolation)
        self._limits, self._interpreter = limits or CallLimits(), interpreter
        self._packages = tuple(dict.fromkeys(("covey", function.partition(":")[0].partition(".")[0], *packages)))
        self._slots = [_Slot() for _ in range(processes)]
        self._free: queue.LifoQueue[_Slot] = queue.LifoQueue()  # LIFO, because the slot used last is warmest
        for slot in reversed(self._slots):
            self._free.put(slot)
        self._counts: Counter[str] = Counter()
        self._seconds = 0.0
        self._counting = threading.Lock()

    @property
    def isolation(self) -> Isolation:
        """Isolation of the calls.

        Raises OperatorError("sandbox_isolation") if the required level does not work.
        """
        return require_isolation(self._isolation)

    @property
    def limits(self) -> CallLimits:
        """Limits of one call."""
        return self._limits

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of calls so far, by outcome.

        "calls" counts all calls. Each other key is the code of a SandboxError, with the number of calls that raised it.
        """
        with self._counting:
            return dict(self._counts)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all calls so far."""
        with self._counting:
            return self._seconds

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids of the running zygotes."""
        processes = [slot.process for slot in self._slots]
        return tuple(process.process_id for process in processes if process is not None and process.is_usable)

    def call(self, payload: bytes, *, attempts: int = 1) -> bytes:
        """Return the function's output, or raise the ProtocolError that the function raised.

        `attempts` is the maximum number of attempts if a call times out or crashes. Calls that reach any other limit
        are not retried, because those limits do not depend on how busy the machine is.

        Raises SandboxError if the call crashes or reaches a limit. Raises TransientError or OperatorError if no process
        starts, which is not caused by the input.
        """
        return self.run(payload, attempts=attempts).unwrap()

    def run(self, payload: bytes, *, attempts: int = 1) -> CallOutcome:
        """Run like `call`, but return the outcome with its CPU time. Raises only TransientError or OperatorError."""
        for _ in range(attempts - 1):
            outcome = self._run_once(payload)
            error = outcome.error
            if not isinstance(error, SandboxError) or error.code not in {"sandbox_timeout", "sandbox_died"}:
                return outcome
        return self._run_once(payload)

    def run_many(self, payloads: Iterable[bytes], *, attempts: int = 1) -> list[CallOutcome]:
        """Run all payloads, distributed over the processes, and return the outcomes in the order of the payloads.

        Raises TransientError or OperatorError if no process starts.
        """
        payloads = list(payloads)
        threads = min(len(self._slots), len(payloads))
        if threads < 2:
            return [self.run(payload, attempts=attempts) for payload in payloads]
        with ThreadPoolExecutor(threads, "sandbox") as executor:
            return list(executor.map(lambda payload: self.run(payload, attempts=attempts), payloads))

    def start(self) -> None:
        """Start all processes now, so that no call waits for a start. Raises TransientError or OperatorError."""
        for slot in self._slots:
            with slot.lock:
                self._start(slot)

    def close(self) -> None:
        """End all processes, each after its current call. A later call starts new ones."""
        for slot in self._slots:
            with slot.lock:
                slot.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_once(self, payload: bytes) -> CallOutcome:
        slot = self._take()
        try:
            with slot.lock:
                outcome = self._run_in(slot, payload)
        finally:
            self._free.put(slot)
        with self._counting:
            self._counts["calls"] += 1
            self._seconds += outcome.cpu_seconds
            if isinstance(outcome.error, SandboxError):
                self._counts[outcome.error.code] += 1
        return outcome

    def _run_in(self, slot: _Slot, payload: bytes) -> CallOutcome:
        process = self._start(slot)
        try:
            return process.run(payload)
        finally:
            if not process.is_usable or process.calls >= self._recycle:
                slot.clear()

    def _start(self, slot: _Slot) -> ZygoteProcess:
        if slot.process is None or not slot.process.is_usable:
            slot.clear()
            slot.process = ZygoteProcess(
                self._function,
                setup=self._setup,
                limits=self._limits,
                isolation=self.isolation,
                surroundings=survey(self._packages, self._interpreter),
            )
        return slot.process

    def _take(self) -> _Slot:
        from covey.runtime.log import get_logger  # imported here, because the process in the sandbox does not need it

        for _ in range(MAX_BUSY_WAITS):
            try:
                return self._free.get(timeout=BUSY_SECONDS)
            except queue.Empty:
                get_logger().warning("all sandbox processes busy", function=self._function, processes=len(self._slots))
        raise TransientError(
            "sandbox_busy", f"all {len(self._slots)} sandbox processes for {self._function} are still busy"
        )
