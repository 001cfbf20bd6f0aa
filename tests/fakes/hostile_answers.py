"""Answers that attack the grader or its machine, by kind. Each of them must earn nothing.

An attack by a program prints what it has reached, and this is the expected output. So it would earn 1 if it succeeded.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.verification.grading_cases import build_reply
from covey.environments.base import Reply

SECRET = "s3cret-7c1f"
SECRET_NAME = "COVEY_HOSTILE_SECRET"

PROGRAMS = {
    "hangs": "while True:\n    pass",
    "hangs and ignores signals": (
        "import signal\nfor n in range(1, 65):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nwhile True:\n    pass"
    ),
    "fork bomb": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "threads without end": (
        "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(9,)).start()"
    ),
    "memory bomb": "held = []\nwhile True:\n    held.append(bytearray(1 << 24))",
    "memory bomb in children": (
        "import os\nfor _ in range(12):\n    if os.fork() == 0:\n        held = []\n"
        "        while True:\n            held.append(bytearray(b'x') * (1 << 22))\nos.wait()\nprint('{secret}x')"
    ),
    "endless output": "while True:\n    print('x' * 65536)",
    "deep recursion": "import sys\nsys.setrecursionlimit(1 << 30)\ndef f():\n    f()\nf()",
    "huge number": "print(9 ** 9 ** 9)",
    "large file": "with open('f', 'wb') as file:\n    while True:\n        file.write(bytes(1 << 20))",
    "network": (
        "import socket\ns = socket.create_connection(('127.0.0.1', {port}), timeout=2)\ns.sendall(b'x')\n"
        "print('{secret}')"
    ),
    "parent's file": "print(open({file!r}).read())",
    "parent's environment": (
        "import os\nfor name in sorted(os.listdir('/proc')):\n    try:\n"
        "        data = open('/proc/' + name + '/environ', 'rb').read()\n    except OSError:\n        continue\n"
        "    if b'{name}=' in data:\n        print(data.partition(b'{name}=')[2].partition(b'\\0')[0].decode())\n"
        "print(os.environ.get('{name}', ''))"
    ),
    "memory of the grader": (
        "import os\nfor name in os.listdir('/proc'):\n    if name.isdecimal() and int(name) != os.getpid():\n"
        "        try:\n            print(open('/proc/' + name + '/mem', 'rb').read(1), '{secret}')\n"
        "        except OSError:\n            pass"
    ),
    "kills its parent": "import os\nos.kill(os.getppid(), 9)\nprint('{secret}x')",
    "kills everything": (
        "import os, signal\nfor number in (signal.SIGSTOP, signal.SIGKILL):\n    try:\n        os.kill(-1, number)\n"
        "    except OSError:\n        pass\nprint('{secret}x')"
    ),
    "writes to every descriptor": (
        "import os\nfor number in range(3, 1024):\n    try:\n        os.write(number, b'o{\"reward\": 1.0}')\n"
        "        print('{secret}')\n    except OSError:\n        pass"
    ),
    "writes outside": "open('/usr/x', 'w').close()\nprint('{secret}')",
    "leaves a daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)\n"
        "    os._exit(0)\nprint('{secret}x')"
    ),
}
MATH = {
    "100,000 digits": "9" * 100_000,
    "tower of powers": "9^{9^{9^{9^{9}}}}",
    "factorials": "((((9!)!)!)!)!",
    "nested fractions": r"\frac{1}{" * 900 + "1" + "}" * 900,
    "deeply nested fractions": r"\frac{1}{" * 20_000 + "1" + "}" * 20_000,
    "nested roots": r"\sqrt{" * 300 + "2" + "}" * 300,
    "open brackets": "(" * 50_000,
    "sum of many": "+".join(f"x^{{{n}}}" for n in range(3000)),
    "power of a sum": "(a+b+c+d+e+f)^{9999}",
    "large exponent": "1e999999999",
    "attribute": "().__class__.__base__.__subclasses__()",
    "import": "__import__('os').system('true')",
    "surrogate": "\ud800" * 50,
    "matrix": r"\begin{pmatrix}" + r"1&2\\" * 3000 + r"\end{pmatrix}",
    "interval of infinity": r"\int_0^{\infty}" * 40 + "x",
}
SHORT = {
    "two million characters": "a" * 2_000_000,
    "combining marks": "e" + "\u0301" * 200_000,
    "ligature": "\ufdfa" * 50_000,
    "surrogate": "\ud800\udfff" * 100,
    "zero bytes": "\x00" * 100_000,
    "quotes": '"' * 100_000,
    "braces": r"\text{" * 20_000,
}
SPELLING = {
    "a million letters": "ab" * 500_000,
    "zero bytes": "\x00" * 100_000,
    "surrogate": "\ud800",
    "right to left": "\u202e\u202d" * 1000,
    "format": "{0.__class__}%s%n" * 100,
}


@dataclass(frozen=True, kw_only=True)
class HostileAnswer:
    """One attack."""

    kind: str
    name: str
    reply: Reply


def list_hostile(secret_file: Path, port: int) -> list[HostileAnswer]:
    """List every attack. `secret_file` contains `SECRET`, and a process listens on `port` of this machine."""
    values: dict[str, object] = {"secret": SECRET, "port": port, "file": str(secret_file), "name": SECRET_NAME}
    tests: dict[str, object] = {"inputs": [""], "outputs": [SECRET], "fn_name": None}
    answers = [("code", name, tests, f"```python\n{_fill(text, values)}\n```") for name, text in PROGRAMS.items()]
    answers += [("math", name, {"ground_truth": ["x^2+3"]}, rf"\boxed{{{text}}}") for name, text in MATH.items()]
    answers += [
        ("short_answer", name, {"answers": ["Paris"]}, f"<answer>{text}</answer>") for name, text in SHORT.items()
    ]
    answers += [("reasoning_gym", name, {"item": 7}, text) for name, text in SPELLING.items()]
    return [
        HostileAnswer(kind=kind, name=name, reply=build_reply(json.loads(json.dumps(given)), text))
        for kind, name, given, text in answers
    ]


def _fill(program: str, values: dict[str, object]) -> str:
    for name, value in values.items():
        program = program.replace(f"{{{name}!r}}", repr(value)).replace(f"{{{name}}}", str(value))
    return program
