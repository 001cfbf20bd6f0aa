"""`python -m benchmarks NAME ARGS` runs a benchmark; without a known NAME it lists them.

Most users write `make bench NAME=memory ARGS="--runs 1"`.
"""

import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

MODULES = {
    "check": "benchmarks.network.check",
    "demo": "benchmarks.network.demo_run",
    "gas": "benchmarks.contracts.gas",
    "verification": "benchmarks.verification.detection",
    "exact": "benchmarks.verification.exact",
    "graders": "benchmarks.verification.graders",
    "toploc": "benchmarks.engines.activation_proofs",
    "engine": "benchmarks.engines.generation_speed",
    "memory": "benchmarks.training.head_memory",
    "staleness": "benchmarks.training.staleness",
    "trainer": "benchmarks.training.throughput",
    "utilisation": "benchmarks.training.utilisation",
}
"""Modules of the benchmarks by the name that users know, in the order of docs/benchmarks.md."""


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that the first argument names with the others; return its exit code."""
    name = arguments[0] if arguments else ""
    if name not in MODULES:
        problem = f'there is no benchmark "{name}"' if name else "no benchmark is named"
        print(f"{problem}. Run make bench NAME=<name> with one of these names:", file=sys.stderr)
        for each in MODULES:
            print(f"  {each:<14}{read_summary(each).splitlines()[0]}", file=sys.stderr)
        return 2
    code: int = import_module(MODULES[name]).main(arguments[1:])
    return code


def read_summary(name: str) -> str:
    """Read the first paragraph of a benchmark's docstring without an import, which would load PyTorch."""
    path = Path(__file__).parent.joinpath(*MODULES[name].split(".")[1:]).with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.split("\n\n")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
