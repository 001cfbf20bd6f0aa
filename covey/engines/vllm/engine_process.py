"""Starts the vLLM subprocess, sends it requests from any number of threads, and ends it.

The subprocess ends when the connection closes, so it never outlives this process. Errors quote its last log lines.
"""

import os
import re
import signal
import socket
import struct
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from itertools import count

from covey.engines.cpu_tuning import VLLM_ENVIRONMENT
from covey.engines.vllm.frames import Frame, receive, send
from covey.engines.vllm.vllm_options import VllmOptions
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError

TAIL = 12
"""Number of log lines that an error quotes."""
_WIDTH = 400
"""Maximum number of characters of a quoted line."""
_MEMORY = re.compile(r"\b\w*MemoryError\b.*|\b\w+Error: .*memory.*", re.IGNORECASE)
"""Matches the last line of a traceback about memory. vLLM reports such an error of a worker only in the log."""
_LAST_WORDS = 5.0
"""Seconds that a process may take to exit after its connection has ended. Then it is killed."""
_SEND_SECONDS = 60
"""Send timeout of the socket in seconds.

The subprocess reads even while it computes, so a longer wait means that it hangs.
"""
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler must run in the child itself
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the second model runner does not support logits processors
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise several engines on one machine would share the first cores
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # Covey samples by itself, so the package need not be installed
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "0",  # the recorder distinguishes successive requests by their names
}
"""Environment variables of every subprocess."""


def build_environment(threads: int, options: VllmOptions, *, device: str, dtype: str) -> dict[str, str]:
    """Return the environment of the subprocess.

    It is this process's environment with the settings for vLLM, but without Covey's settings, which may be secret. vLLM
    uses the first GPUs that it sees, so GPUs before the one in `device`, for example "cuda:1", are hidden.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("COVEY_")}
    compiler = {"TORCH_COMPILE_DISABLE": "1"} if options.resolve(device).enforce_eager else {}
    memory = VLLM_ENVIRONMENT if device == "cpu" else {}
    # Triton multiplies float32 in TF32 by default, and vLLM uses Triton's attention for float32.
    precision = {"TRITON_F32_DEFAULT": "ieee"} if dtype == "float32" and device != "cpu" else {}
    first_gpu = device.partition(":")[2]
    if first_gpu:
        visible = [each for each in own.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        own["CUDA_VISIBLE_DEVICES"] = ",".join(visible[int(first_gpu) :]) if visible else first_gpu
    invariant = {"VLLM_BATCH_INVARIANT": "1"} if options.exact and device != "cpu" else {}
    return {**own, **_ENVIRONMENT, **memory, **compiler, **precision, **invariant, "OMP_NUM_THREADS": str(threads)}


class EngineProcess:
    """One subprocess. It is not restarted after it has died.

    Example: `EngineProcess("python3", environment).ask(Frame("start"), 60)`.
    """

    def __init__(self, interpreter: str, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        arguments = [interpreter, "-m", "covey.engines.vllm.engine_child", str(theirs.fileno())]
        try:
            self._child = subprocess.Popen(
                arguments,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a stop signal of the terminal must only reach the parent, which drains
            )
        except OSError as error:
            ours.close()
            raise OperatorError(
                "engine_start",
                f"the Python interpreter {interpreter} cannot be started: {error}",
                fix="Use a Python that has vLLM installed",
            ) from error
        finally:
            theirs.close()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))
        self._connection = ours
        self._sending, self._closing = threading.Lock(), threading.Lock()
        self._calls = count(1)
        self._waiting: dict[int, Future[Frame]] = {}
        """Futures of the expected responses, by request number."""
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._memory_line: str | None = None
        """The subprocess's last logged error about memory. None if there is none."""
        self._was_killed = False
        """Whether the kernel or a different process killed the subprocess, for example because memory ran out.

        False if `close` killed it.
        """
        self._threads = [
            threading.Thread(target=read, name=f"vllm-{name}", daemon=True)
            for name, read in (("log", self._read_log), ("answers", self._read_answers))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def process_id(self) -> int:
        """Process id of the subprocess, which may have ended."""
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        """Whether the subprocess runs and accepts requests."""
        return self._child.poll() is None

    def ask(self, frame: Frame, seconds: float) -> Frame:
        """Send a request and wait up to `seconds` for the response.

        Raises the error in the response. Raises TransientError("engine_died") or TransientError("engine_timeout") if
        there is no response. The subprocess has then been ended.
        """
        call, answer = next(self._calls), None
        future = self._waiting[call] = Future[Frame]()
        try:
            with self._sending:
                send(self._connection, replace(frame, call=call))
            answer = future.result(seconds)
        except BlockingIOError as error:
            raise TransientError(
                "engine_timeout", f"the vLLM process did not read the request {frame.kind} in time"
            ) from error
        except TimeoutError as error:
            raise TransientError(
                "engine_timeout", f"vLLM took more than {seconds:g} s for the request {frame.kind}"
            ) from error
        except (EOFError, OSError) as error:
            raise TransientError("engine_died", f"the vLLM process died: {self._describe_end()}") from error
        finally:
            del self._waiting[call]
            if answer is None:  # otherwise it would compute an answer that nobody waits for
                self.close()
        if answer.kind == "refused":
            raise _rebuild(answer.values)
        return answer

    def close(self) -> None:
        """End the subprocess and all its child processes. Waiting calls raise TransientError("engine_died")."""
        with self._closing:
            with suppress(OSError):  # the connection is closed already
                self._connection.shutdown(socket.SHUT_RDWR)
            if self._child.returncode is None or any(thread.is_alive() for thread in self._threads):
                with suppress(ProcessLookupError):  # the subprocess has exited
                    os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            for thread in self._threads:
                thread.join()
            self._connection.close()
            assert self._child.stderr is not None
            self._child.stderr.close()

    def explain_death(self, error: CoveyError, *, is_first: bool) -> CoveyError:
        """Return the error of a start in which the subprocess died, with its reason if log or kernel show one.

        Unless it is the first start, the machine has run the model before, and the error stays as it is.
        """
        if self._memory_line is not None:
            return build_too_large(self._memory_line)
        if is_first and self._was_killed:
            return build_too_large("the vLLM process was killed, probably because the machine ran out of memory")
        if is_first:
            return OperatorError("engine_start", error.message, fix="Read the log lines of the vLLM process")
        return error

    def _describe_end(self) -> str:
        with suppress(subprocess.TimeoutExpired):  # its connection ends before it does, and it still logs the reason
            self._was_killed = self._child.wait(_LAST_WORDS) == -signal.SIGKILL
        self.close()
        code = self._child.returncode
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        return "\n  ".join([how + ("; its last log lines:" if self._tail else ""), *self._tail])

    def _read_answers(self) -> None:
        try:
            while True:
                answer = receive(self._connection)
                self._waiting[answer.call].set_result(answer)
        except (EOFError, OSError, ValueError, KeyError):  # it has died, or it sent an invalid frame or call number
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # comes first, so that `send` fails for later questions
            for future in list(self._waiting.values()):
                with suppress(InvalidStateError):  # the future has its answer
                    future.set_exception(EOFError("the connection to the vLLM process was closed"))

    def _read_log(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            text = line.decode("utf-8", "replace").rstrip()[:_WIDTH]
            self._tail.append(text)
            memory_error = _MEMORY.search(text)
            if memory_error is not None and "illegal memory" not in text:
                self._memory_line = memory_error[0]


def build_too_large(reason: str) -> OperatorError:
    """Return the error for a model that ran out of memory while it started."""
    return OperatorError(
        "model_too_large",
        f"the model does not fit into memory: {reason}",
        fix="Lower batch, set gpu_memory_utilization or kv_cache_memory_bytes to fit the device, or "
        "raise tensor_parallel_size",
    )


def _rebuild(values: Mapping[str, object]) -> CoveyError:
    code, message, fix = (str(values[name]) for name in ("code", "message", "fix"))
    return OperatorError(code, message, fix=fix) if fix else ProtocolError(code, message)
