"""The command `python -m benchmarks NAME ARGS`, which runs a benchmark; without a known NAME it lists them.

`make bench NAME=memory ARGS="--runs 1"` is the same.  With `--save` the result goes into benchmarks/results, too.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks import results, results_page
from benchmarks.benchmark_list import MODULES, read_summary
from benchmarks.harness import OUTPUT

SAVE = "--save"


def run(arguments: Sequence[str]) -> int:
    """Run the benchmark that the first argument names with the other arguments; return its exit code."""
    name, *others = arguments or [""]
    if name not in MODULES:
        problem = f'There is no benchmark "{name}".' if name else "No benchmark is named."
        print(f"{problem} Run make bench NAME=<name> with one of these names:", file=sys.stderr)
        for each in MODULES:
            print(f"  {each:<13} {read_summary(each)}", file=sys.stderr)
        return 2
    own = [each for each in others if each != SAVE]
    output = OUTPUT / f"{name}.json"
    if SAVE in others:
        output.unlink(missing_ok=True)  # so that a run that writes nothing does not save the last one
    code: int = import_module(MODULES[name]).main(own)
    if SAVE in others and output.exists():
        print(f"Saved in benchmarks/results/{save(name, output).name}, and docs/{results_page.PAGE.name} is written.")
    return code


def save(name: str, output: Path) -> Path:
    """Add the result in `output` to the committed file of this machine and write the page; return the file."""
    machine, by_name = results.read(output)
    path = results.save(name, by_name[name], machine)
    results_page.write_page()
    return path
