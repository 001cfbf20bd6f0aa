"""A sandbox: warm processes for one function, each of which forks a child for every call."""

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
from covey.sandbox.ladder import require_isolation
from covey.sandbox.sandbox_errors import SandboxError
from covey.sandbox.zygote_process import CallOutcome, ZygoteProcess

ATTEMPTS = 2
"""How often a peer's input is tried before it is blamed: a busy machine may cost it one process, hardly two."""
BUSY_SECONDS = 60.0
"""How long a call waits for a free process before it says so in the log."""
BUSY_TIMES = 10
"""How many such waits there are before the call is given up."""


class _Slot:
    """Place of one process, which exists from its first call on."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: ZygoteProcess | None = None

    def clear(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None


class Sandbox:
    """Runs a bytes -> bytes function on hostile input.  Safe to use from several threads.

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
        """Nothing is started before the first call; raise OperatorError("sandbox_isolation") if the rung does not hold.

        `function`: "module:attribute" of a factory that takes `setup` and returns the function; called once in each
        process.  `processes`: how many calls run at once.  `isolation`: a rung that must hold; None: the best one.
        `recycle`: calls after which a process is replaced.  `packages`: top-level packages that the function imports
        from source folders, besides covey and its own.  `interpreter`: another Python for the processes.
        It must have what the function imports, but not Covey.
        """
        self._function, self._setup, self._recycle, self._isolation = function, setup, recycle, isolation
        if isolation not in {None, "auto"}:
            require_isolation(isolation)
        self._limits, self._interpreter = limits or CallLimits(), interpreter
        self._packages = tuple(dict.fromkeys(("covey", function.partition(":")[0].partition(".")[0], *packages)))
        self._slots = [_Slot() for _ in range(processes)]
        self._free: queue.LifoQueue[_Slot] = queue.LifoQueue()  # the one used last is the warmest
        for slot in reversed(self._slots):
            self._free.put(slot)
        self._counts: Counter[str] = Counter()
        self._seconds = 0.0
        self._counting = threading.Lock()

    @property
    def isolation(self) -> Isolation:
        """The rung that calls run on; raise OperatorError("sandbox_isolation") if the required one does not hold."""
        return require_isolation(self._isolation)

    @property
    def limits(self) -> CallLimits:
        """Limits of one call."""
        return self._limits

    @property
    def counts(self) -> Mapping[str, int]:
        """Calls so far: all under "calls", those without an answer under the code of their SandboxError."""
        with self._counting:
            return dict(self._counts)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all calls so far."""
        with self._counting:
            return self._seconds

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Numbers of the living zygotes."""
        processes = [slot.process for slot in self._slots]
        return tuple(process.process_id for process in processes if process is not None and process.is_usable)

    def call(self, payload: bytes, *, attempts: int = 1) -> bytes:
        """Return the function's answer; raise its ProtocolError, or SandboxError.

        `attempts`: how many calls may end by the wall clock or by a death before that is raised.  Other limits do not
        depend on how busy the machine is, so that they are not tried again.
        Raises TransientError or OperatorError if no process starts: that is not the input's fault.
        """
        return self.run(payload, attempts=attempts).unwrap()

    def run(self, payload: bytes, *, attempts: int = 1) -> CallOutcome:
        """As `call`, with the CPU time; raise TransientError or OperatorError alone."""
        for _ in range(attempts - 1):
            outcome = self._run_once(payload)
            error = outcome.error
            if not isinstance(error, SandboxError) or error.code not in {"sandbox_timeout", "sandbox_died"}:
                return outcome
        return self._run_once(payload)

    def run_many(self, payloads: Iterable[bytes], *, attempts: int = 1) -> list[CallOutcome]:
        """Outcomes in the order of the payloads, which are spread over the processes.

        Raises TransientError or OperatorError if no process starts.
        """
        listed = list(payloads)
        threads = min(len(self._slots), len(listed))
        if threads < 2:
            return [self.run(payload, attempts=attempts) for payload in listed]
        with ThreadPoolExecutor(threads, "sandbox") as executor:
            return list(executor.map(lambda payload: self.run(payload, attempts=attempts), listed))

    def start(self) -> None:
        """Start all processes now, so that no call waits for it; raise TransientError or OperatorError."""
        for slot in self._slots:
            with slot.lock:
                self._start(slot)

    def close(self) -> None:
        """End all processes, each when its call has ended.  A later call starts new ones."""
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
        from covey.runtime.log import get_logger  # not above: the process inside has no use for it

        for _ in range(BUSY_TIMES):
            try:
                return self._free.get(timeout=BUSY_SECONDS)
            except queue.Empty:
                get_logger().warning("sandbox busy", function=self._function, processes=len(self._slots))
        raise TransientError("sandbox_busy", f"all {len(self._slots)} processes of {self._function} stay busy")
