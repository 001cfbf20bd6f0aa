"""Remove guards from the contracts, one at a time, and require that a test fails.  `make mutants` calls this.

The list is in mutants.toml in this folder.  The contracts are copied to build/mutants and compiled without the
optimizer.  Only a failing test catches a mutant.  A compile error, a failing setUp, or a test that fails without the
mutant is an error.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutants"
LIST = Path(__file__).with_name("mutants.toml")
HARDHAT = ROOT / "node_modules" / "hardhat" / "dist" / "src" / "cli.js"
LIMIT_S = 480


class MutantError(Exception):
    """The list of mutants or the tests are wrong, so no result says anything about a guard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """A change that removes one guard.

    Example: test="Stake.t.sol invariants/Stake.t.sol" means that a test in one of these files must fail.
    """

    name: str
    file: str
    find: str
    replace: str
    guard: str
    test: str

    @property
    def test_files(self) -> list[str]:
        return [f"tests/contracts/{name}" for name in self.test.split()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Outcome of a mutant.  It survived if `caught_by` and `error` are both empty."""

    name: str
    guard: str
    caught_by: list[str]
    error: str
    seconds: float

    @property
    def verdict(self) -> str:
        return f"ERROR {self.error}" if self.error else ", ".join(self.caught_by) or "SURVIVED"


def read_mutants(path: Path) -> list[Mutant]:
    mutants = [Mutant(**entry) for entry in tomllib.loads(path.read_text())["mutant"]]
    if len({mutant.name for mutant in mutants}) != len(mutants):
        raise MutantError("two mutants have the same name")
    return mutants


def apply(mutant: Mutant, source: str) -> str:
    """Return the source without the guard.  Exactly one place in it must match."""
    count = source.count(mutant.find)
    if count != 1:
        raise MutantError(f"`find` occurs {count} times in {mutant.file}, expected once")
    return source.replace(mutant.find, mutant.replace)


def make_copy() -> None:
    """Copy the sources again.  Cache and artifacts of the last run stay, so that only changed files are compiled."""
    for folder in ("contracts", "tests"):
        shutil.rmtree(COPY / folder, ignore_errors=True)
    for path in [*(ROOT / "contracts").rglob("*.sol"), *(ROOT / "tests/contracts").rglob("*.sol")]:
        target = COPY / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for name in ("hardhat.config.js", "package.json"):
        shutil.copyfile(ROOT / name, COPY / name)
    if not (COPY / "node_modules").is_symlink():
        (COPY / "node_modules").symlink_to(ROOT / "node_modules")


def read_report(text: str) -> list[tuple[str, str, bool]]:
    """Return file, test and whether the test passed, for each test in Hardhat's report."""
    rows = []
    file = ""
    for line in text.splitlines():
        if heading := re.match(r"^  (\S+\.sol):\w+$", line):
            file = heading[1]
        elif row := re.match(r"^    (✔|\d+\)) (\w+)\(", line):
            rows.append((file, row[2], row[1] == "✔"))
    return rows


def run_tests(node: str, files: list[str]) -> list[tuple[str, str, bool]]:
    command = [node, str(HARDHAT), "test", "solidity", *files]
    env = os.environ | {"SOLC_OPTIMIZER": "off"}
    done = subprocess.run(command, cwd=COPY, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    rows = read_report(done.stdout)
    if (done.returncode == 0) != all(passed for _, _, passed in rows):
        raise MutantError(f"the tests did not run: {(done.stderr.strip() or done.stdout)[:800]}")
    return rows


def require_sound_tests(node: str, mutants: list[Mutant]) -> None:
    """Require that every test file that a mutant names has tests, and that all of them pass without the mutant."""
    rows = run_tests(node, sorted({file for mutant in mutants for file in mutant.test_files}))
    for mutant in mutants:
        for named in mutant.test_files:
            passed = [ok for file, _, ok in rows if file == named]
            if not passed or not all(passed):
                raise MutantError(f"{mutant.name}: {named} has no tests, or one that fails without the mutant")


def try_mutant(node: str, mutant: Mutant) -> Result:
    start = time.monotonic()
    target = COPY / mutant.file
    source = target.read_text()
    failed: list[str] = []
    error = ""
    try:
        target.write_text(apply(mutant, source))
        rows = run_tests(node, mutant.test_files)
        failed = sorted({name for _, name, passed in rows if not passed})
        if "setUp" in failed:
            raise MutantError("setUp fails, so no test ran")
    except (MutantError, subprocess.TimeoutExpired) as caught:
        error = str(caught)
    finally:
        target.write_text(source)
    seconds = round(time.monotonic() - start, 1)
    return Result(name=mutant.name, guard=mutant.guard, caught_by=failed, error=error, seconds=seconds)


def choose(mutants: list[Mutant], *, only: str | None, every: int) -> list[Mutant]:
    chosen = [mutant for mutant in mutants if only in {None, mutant.name}][::every]
    if not chosen:
        raise MutantError(f"there is no mutant named {only}")
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", metavar="NAME", help="only this mutant")
    parser.add_argument("--slice", metavar="N", type=int, default=1, help="every Nth mutant of the list")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results to FILE")
    options = parser.parse_args()
    node = shutil.which("node")
    try:
        if node is None:
            raise MutantError("node is not on the path; run `make mutants`")
        chosen = choose(read_mutants(LIST), only=options.only, every=options.slice)
        make_copy()
        require_sound_tests(node, chosen)
        results = []
        for mutant in chosen:
            result = try_mutant(node, mutant)
            print(f"{result.name:<36} {result.guard:<60} {result.verdict}", flush=True)
            results.append(result)
    except (MutantError, subprocess.TimeoutExpired) as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + os.linesep)
    errors = sum(bool(result.error) for result in results)
    caught = sum(bool(result.caught_by) and not result.error for result in results)
    print(f"{len(results)} mutants, {caught} caught, {len(results) - caught - errors} survived, {errors} errors")
    return 0 if caught == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
