"""The process of vLLM: answers the questions of `process` one by one, until the connection ends.

Started as `python -m covey.engines.vllm.child DESCRIPTOR`.  What it cannot name ends it; the parent quotes its log.
"""

import os
import queue
import socket
import sys
import threading

import torch

from covey.engines.vllm.frames import Frame, receive, send
from covey.errors import CoveyError, OperatorError

_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory")


def serve(descriptor: int) -> None:
    """Answer until the parent is gone."""
    os.dup2(2, 1)
    connection = socket.socket(fileno=descriptor)
    questions: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, questions), daemon=True).start()
    from covey.engines.vllm.serving import Serving, start

    serving: Serving | None = None
    while True:
        question = questions.get()
        try:
            if serving is None:
                serving = start(question)
                answer = serving.describe()
            else:
                answer = serving.answer(question)
        except CoveyError as error:
            send(connection, _refuse(error))
            continue
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and not any(each in str(error) for each in _MEMORY):
                raise
            lost = OperatorError(
                "engine_out_of_memory",
                f"vLLM ran out of memory: {str(error).splitlines()[0] if str(error) else 'no more is known'}",
                fix="Lower batch or batch_tokens, or give it more memory",
            )
            send(connection, _refuse(lost))
            raise  # half a batch is inside
        send(connection, answer)


def _read(connection: socket.socket, questions: "queue.SimpleQueue[Frame]") -> None:
    """Of its own thread, so that the end of the parent is seen in the middle of an answer too."""
    try:
        while True:
            questions.put(receive(connection))
    except (EOFError, OSError):
        os._exit(0)


def _refuse(error: CoveyError) -> Frame:
    fix = error.fix if isinstance(error, OperatorError) else ""
    message = error.message.removesuffix(f". {fix}") if fix else error.message
    return Frame("refused", {"code": error.code, "message": message[:4000], "fix": fix})


if __name__ == "__main__":
    serve(int(sys.argv[1]))
