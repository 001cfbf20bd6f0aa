"""`python -m benchmarks NAME ARGS` runs a benchmark; `benchmarks.command` describes it."""

import sys

from benchmarks.command import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
