"""A function in a fresh process of one thread, which holds no other measurement's memory or libraries.

`call` starts `python -m benchmarks.isolated_process`.  Values cross as JSON, dataclasses as their fields.  The module
imports next to nothing, so that the process holds only what its function needs.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from covey.errors import OperatorError

LOGS = Path("build/bench")
"""Folder of the processes' logs, one per function."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
TIMEOUT_S = 1800


def call(function: str, *values: Any) -> Any:
    """Return what a function returns in a fresh process.  Example: call("json:loads", "[1.5]").

    Raises OperatorError("child_failed") if the process fails.
    """
    log = LOGS / f"{function.removeprefix('benchmarks.').replace(':', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.isolated_process", function, json.dumps(values, default=asdict)]
    with log.open("w") as errors:
        done = subprocess.run(
            command,
            env=os.environ | ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise OperatorError("child_failed", f"{function} ended with exit code {done.returncode}", fix=f"Read {log}")
    return json.loads(done.stdout.splitlines()[-1])  # libraries may have printed lines before it


def read_peak() -> int:
    """Read the peak of this process's resident memory in bytes.

    `getrusage` does not serve here: a process that was started by fork begins with the peak of its parent.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    print(json.dumps(getattr(import_module(module), name)(*json.loads(sys.argv[2])), default=asdict))
