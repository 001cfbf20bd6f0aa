"""The process of vLLM: answers the questions of `process` until the connection ends.

Generations run together, whenever they come; any other question waits until nothing runs.  Started as `python -m
covey.engines.vllm.engine_child DESCRIPTOR`.  What it cannot name ends it; the parent quotes its log.
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
    """Answer until the parent is gone, which a stop signal of the whole service makes drain first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.dup2(2, 1)
    connection = socket.socket(fileno=descriptor)
    questions: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, questions), daemon=True).start()
    from covey.engines.vllm.serving import start

    serving = _start(connection, questions, start)
    held: Frame | None = None
    while True:
        question = held or _get(questions, wait=not serving.calls)
        held = None
        if question is not None and not serving.can_join(question):
            question, held = None, question
        calls = serving.calls if question is None else (question.call,)
        try:
            answers = serving.step() if question is None else serving.answer(question)
        except CoveyError as error:
            answers = [_refuse(error, call) for call in calls]
        except (MemoryError, RuntimeError) as error:
            if (lost := explain_memory(error, "vLLM")) is not None:
                for call in {*calls, *serving.calls}:
                    send(connection, _refuse(lost, call))
            raise  # half a batch is inside
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
    """Of its own thread, so that the end of the parent is seen in the middle of an answer too."""
    try:
        while True:
            questions.put(receive(connection))
    except (EOFError, OSError):
        os._exit(0)


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
        os._exit(1)  # at once: what a library does at the end of a process may hang
