"""`python -m benchmarks.gpu SECTIONS` measures this machine; `benchmarks.gpu.gpu_command` describes it."""

import sys

from benchmarks.gpu.gpu_command import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
