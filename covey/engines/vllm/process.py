"""The other process as `engine` sees it: started, asked one question at a time, ended.

It ends when its end of the connection closes, so it never outlives this one.  What it wrote last is quoted in errors.
"""

import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

from covey.engines.vllm.frames import Frame, receive, send
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError

TAIL = 12
"""Lines quoted."""
_WIDTH = 400
_LAST_WORDS = 5.0
"""Seconds for a process that broke off to end by itself."""
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler is in the child, which is the only process where it can
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the second one knows no logits processors
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several engines on one machine would share the first cores
    "VLLM_HOST_IP": "127.0.0.1",
}
_CPU = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Of glibc: freed memory is kept.  Logits are tens of MiB in each step, and pages that are new cost more than they."""


def build_environment(threads: int, *, eager: bool, device: str) -> dict[str, str]:
    """Of this process, without what is Covey's, as a setting may be a secret, and what vLLM shall know."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("COVEY_")}
    compiler = {"TORCH_COMPILE_DISABLE": "1"} if eager else {}
    memory = _CPU if device == "cpu" else {}
    return {**own, **_ENVIRONMENT, **memory, **compiler, "OMP_NUM_THREADS": str(threads)}


class Process:
    """One child; a dead one is not started again.  Use: `Process("python3", environment).ask(Frame("start"), 60)`."""

    def __init__(self, interpreter: str, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        arguments = [interpreter, "-m", "covey.engines.vllm.child", str(theirs.fileno())]
        try:
            self._child = subprocess.Popen(
                arguments,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a stop signal of the terminal is for the parent, which drains
            )
        except OSError as error:
            ours.close()
            raise OperatorError(
                "engine_start", f"{interpreter} cannot be started: {error}", fix="Name a Python that has vLLM"
            ) from error
        finally:
            theirs.close()
        self._connection = ours
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._reader = threading.Thread(target=self._read_log, name="vllm-log", daemon=True)
        self._reader.start()

    @property
    def process_id(self) -> int:
        """Of the child, living or not."""
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._child.poll() is None

    def ask(self, frame: Frame, seconds: float) -> Frame:
        """Its answer.  Raises the error that it answers with; TransientError "engine_died" or "engine_timeout"."""
        deadline, is_whole = time.monotonic() + seconds, False
        try:
            send(self._connection, frame, deadline)
            answer = receive(self._connection, deadline)
            is_whole = True
        except TimeoutError as error:
            raise TransientError("engine_timeout", f"vLLM took more than {seconds:g} s for {frame.kind}") from error
        except (EOFError, OSError) as error:
            raise TransientError("engine_died", f"vLLM's process died: {self._describe_end()}") from error
        finally:
            if not is_whole:  # half an answer must not be the next call's
                self.close()
        if answer.kind == "refused":
            raise _rebuild(answer.values)
        return answer

    def close(self) -> None:
        """End it, and whatever processes it started."""
        self._connection.close()
        if self._child.returncode is None or self._reader.is_alive():
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._reader.join()
        assert self._child.stderr is not None
        self._child.stderr.close()

    def _describe_end(self) -> str:
        with suppress(subprocess.TimeoutExpired):  # its connection ends before it does: it still writes why
            self._child.wait(_LAST_WORDS)
        self.close()
        code = self._child.returncode
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        return "\n  ".join([how + ("; the last that it wrote:" if self._tail else ""), *self._tail])

    def _read_log(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self._tail.append(line.decode("utf-8", "replace").rstrip()[:_WIDTH])


def _rebuild(values: Mapping[str, object]) -> CoveyError:
    code, message, fix = (str(values[name]) for name in ("code", "message", "fix"))
    return OperatorError(code, message, fix=fix) if fix else ProtocolError(code, message)
