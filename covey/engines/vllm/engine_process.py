"""The other process as `engine` sees it: started, asked by any number of threads, ended.

It ends when its end of the connection closes, so it never outlives this one.  What it wrote last is quoted in errors.
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

from covey.engines.vllm.frames import Frame, receive, send
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError

TAIL = 12
"""Lines quoted."""
_WIDTH = 400
_MEMORY = re.compile(r"\b\w*MemoryError\b.*|\b\w+Error: .*memory.*", re.IGNORECASE)
"""How the traceback of an exception ends that names memory.  Of a rank below the child, vLLM says it nowhere else."""
_LAST_WORDS = 5.0
"""Seconds for a process that broke off to end by itself."""
_SEND_SECONDS = 60
"""For a part of a question: the other process reads all the time, also while it computes."""
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler is in the child, which is the only process where it can
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the second one knows no logits processors
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several engines on one machine would share the first cores
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "0",  # the recorder tells requests that follow each other by their names
}
_CPU = {
    # glibc keeps freed memory: logits are tens of MiB in each step, and pages that are new cost more than they.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",  # no tiles of AMX; see `extension`
}


def build_environment(threads: int, *, enforce_eager: bool, device: str) -> dict[str, str]:
    """This process's, without Covey's settings, which may be secret, and with what vLLM shall know.

    vLLM takes the first GPUs that it sees, so it sees none before the one that `device` names, as in "cuda:1".
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("COVEY_")}
    compiler = {"TORCH_COMPILE_DISABLE": "1"} if enforce_eager else {}
    memory = _CPU if device == "cpu" else {}
    place = device.partition(":")[2]
    if place:
        visible = [each for each in own.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        own["CUDA_VISIBLE_DEVICES"] = ",".join(visible[int(place) :]) if visible else place
    return {**own, **_ENVIRONMENT, **memory, **compiler, "OMP_NUM_THREADS": str(threads)}


class EngineProcess:
    """One child; a dead one is not started again.  Use: `Process("python3", environment).ask(Frame("start"), 60)`."""

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
                start_new_session=True,  # a stop signal of the terminal is for the parent, which drains
            )
        except OSError as error:
            ours.close()
            raise OperatorError(
                "engine_start", f"{interpreter} cannot be started: {error}", fix="Name a Python that has vLLM"
            ) from error
        finally:
            theirs.close()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))
        self._connection = ours
        self._sending, self._closing = threading.Lock(), threading.Lock()
        self._calls = count(1)
        self._waiting: dict[int, Future[Frame]] = {}
        """For the answers, by number of the question."""
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._memory_line: str | None = None
        self.was_killed = False
        """By another process or the kernel, as where memory ran out; not by `close`."""
        self._threads = [
            threading.Thread(target=read, name=f"vllm-{name}", daemon=True)
            for name, read in (("log", self._read_log), ("answers", self._read_answers))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def process_id(self) -> int:
        """Of the child, living or not."""
        return self._child.pid

    @property
    def memory_line(self) -> str | None:
        """The last error that it wrote and that names memory; None where it wrote none."""
        return self._memory_line

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._child.poll() is None

    def ask(self, frame: Frame, seconds: float) -> Frame:
        """Its answer.  Raises the error that it answers with; TransientError "engine_died" or "engine_timeout"."""
        call, answer = next(self._calls), None
        coming = self._waiting[call] = Future[Frame]()
        try:
            with self._sending:
                send(self._connection, replace(frame, call=call))
            answer = coming.result(seconds)
        except BlockingIOError as error:
            raise TransientError("engine_timeout", f"vLLM's process took no {frame.kind}") from error
        except TimeoutError as error:
            raise TransientError("engine_timeout", f"vLLM took more than {seconds:g} s for {frame.kind}") from error
        except (EOFError, OSError) as error:
            raise TransientError("engine_died", f"vLLM's process died: {self._describe_end()}") from error
        finally:
            del self._waiting[call]
            if answer is None:  # it would compute what nobody waits for
                self.close()
        if answer.kind == "refused":
            raise _rebuild(answer.values)
        return answer

    def close(self) -> None:
        """End it, and whatever processes it started; who waits for an answer is told that it died."""
        with self._closing:
            with suppress(OSError):  # it is closed already
                self._connection.shutdown(socket.SHUT_RDWR)
            if self._child.returncode is None or any(thread.is_alive() for thread in self._threads):
                with suppress(ProcessLookupError):  # it ended by itself
                    os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            for thread in self._threads:
                thread.join()
            self._connection.close()
            assert self._child.stderr is not None
            self._child.stderr.close()

    def _describe_end(self) -> str:
        with suppress(subprocess.TimeoutExpired):  # its connection ends before it does: it still writes why
            self.was_killed = self._child.wait(_LAST_WORDS) == -signal.SIGKILL
        self.close()
        code = self._child.returncode
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        return "\n  ".join([how + ("; the last that it wrote:" if self._tail else ""), *self._tail])

    def _read_answers(self) -> None:
        try:
            while True:
                answer = receive(self._connection)
                self._waiting[answer.call].set_result(answer)
        except (EOFError, OSError, ValueError, KeyError):  # it is gone, or what it says is none of ours
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # first: who asks from now on is told by `send`
            for coming in list(self._waiting.values()):
                with suppress(InvalidStateError):  # it has its answer
                    coming.set_exception(EOFError("the connection ended"))

    def _read_log(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            text = line.decode("utf-8", "replace").rstrip()[:_WIDTH]
            self._tail.append(text)
            found = _MEMORY.search(text)
            if found is not None and "illegal memory" not in text:
                self._memory_line = found[0]


def build_too_large(reason: str) -> OperatorError:
    """Error for a model that found too little memory at its start."""
    return OperatorError(
        "model_too_large",
        f"the model does not fit: {reason}",
        fix="Lower batch, set gpu_memory_utilization or kv_cache_memory_bytes to what the device has, or raise"
        " tensor_parallel_size",
    )


def _rebuild(values: Mapping[str, object]) -> CoveyError:
    code, message, fix = (str(values[name]) for name in ("code", "message", "fix"))
    return OperatorError(code, message, fix=fix) if fix else ProtocolError(code, message)
