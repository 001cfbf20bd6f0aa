"""What the sandbox's tests run in its child: each does one thing that hostile input could cause."""

import os
import signal
import sys
import time

from covey.errors import ProtocolError

_CALLS: list[bytes] = []


def behave(payload: bytes) -> bytes:
    """First word of the payload: what to do."""
    _CALLS.append(payload)
    word, _, rest = payload.partition(b" ")
    match word:
        case b"echo":
            return rest
        case b"count":
            return str(len(_CALLS)).encode()
        case b"refuse":
            raise ProtocolError("too_odd", "line one\nline two", status=409)
        case b"raise":
            raise ValueError("a bug")
        case b"sleep":
            time.sleep(float(rest))
        case b"spin":
            while True:
                pass
        case b"eat":
            return str(len(bytearray(int(rest)))).encode()
        case b"say":
            return bytes(int(rest))
        case b"late":  # slow once: the file remembers the first child that met the input
            if os.path.exists(rest):
                return b"in time"
            open(rest, "x").close()
            time.sleep(60)
        case b"log":
            with open(rest, "ab") as log:
                log.write(b"%d\n" % os.getpid())
            os._exit(1)
        case b"print":
            print("x" * 100_000, flush=True)
            os.write(1, b"\x00" * 1000)
            return b"printed"
        case b"exit":
            os._exit(int(rest))
        case b"quit":
            sys.exit(0)
        case b"segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case b"environment":
            return repr(sorted(os.environ)).encode()
        case b"pid":
            return str(os.getpid()).encode()
    return b""
