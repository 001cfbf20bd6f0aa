"""The vLLM subprocess. It serves the requests of `engine_process` until the connection ends.

Generations run concurrently as they arrive. Any other request waits until nothing runs. The process is started with
`python -m covey.engines.vllm.engine_child DESCRIPTOR`. An unexpected error ends it, and the parent quotes its log.
"""

import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from covey.engines.process_memory import explain_memory
from covey.engines.vllm.frames import Frame, receive, send
from covey.errors import CoveyError, OperatorError

if TYPE_CHECKING:
    from covey.engines.vllm.serving import Serving


def serve(descriptor: int) -> None:
    """Serve requests until the parent closes the connection.

    Stop signals are ignored. When the whole service is stopped, this process gets the signal too, but the parent
    finishes its work first.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.dup2(2, 1)
    connection = socket.socket(fileno=descriptor)
    questions: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, questions), daemon=True).start()
    from covey.engines.vllm.serving import start

    serving = _start(connection, questions, start)
    deferred: Frame | None = None
    while True:
        question = deferred or _get(questions, wait=not serving.calls)
        deferred = None
        if question is not None and not serving.can_join(question):
            question, deferred = None, question
        calls = serving.calls if question is None else (question.call,)
        try:
            answers = serving.step() if question is None else serving.answer(question)
        except CoveyError as error:
            answers = [_refuse(error, call) for call in calls]
        except (MemoryError, RuntimeError) as error:
            if (out_of_memory := explain_memory(error, "vLLM")) is not None:
                for call in {*calls, *serving.calls}:
                    send(connection, _refuse(out_of_memory, call))
            raise  # the engine contains half a batch, so it cannot be used again
        for answer in answers:
            send(connection, answer)


def _start(
    connection: socket.socket, questions: "queue.SimpleQueue[Frame]", start: "Callable[[Frame], Serving]"
) -> "Serving":
    while True:
        question = questions.get()
        try:
            serving = start(question)
        except CoveyError as error:
            send(connection, _refuse(error, question.call))
            continue
        send(connection, serving.describe(question))
        return serving


def _get(questions: "queue.SimpleQueue[Frame]", *, wait: bool) -> Frame | None:
    try:
        return questions.get(block=wait)
    except queue.Empty:
        return None


def _read(connection: socket.socket, questions: "queue.SimpleQueue[Frame]") -> None:
    """Read requests in a separate thread, so that the process ends with its parent even while it computes."""
    try:
        while True:
            questions.put(receive(connection))
    except (EOFError, OSError):
        os._exit(0)
    except ValueError:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _refuse(error: CoveyError, call: int) -> Frame:
    fix = error.fix if isinstance(error, OperatorError) else ""
    message = error.message.removesuffix(f". {fix}") if fix else error.message
    return Frame("refused", {"code": error.code, "message": message[:4000], "fix": fix}, call=call)


if __name__ == "__main__":
    try:
        serve(int(sys.argv[1]))
    finally:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # exits at once, because the exit handlers of a library may hang
