"""Prove promises of the contracts for all arguments, and refute a broken twin of each.  `make halmos` calls this.

proofs.toml in this folder lists the properties.  Halmos executes them symbolically on the contracts as Hardhat compiles
them.  A twin is a copy of the contracts in which one line is wrong: there halmos must find a counterexample, or the
property shows nothing.  A timeout, a loop that is not unrolled and a property without a passing path are failures.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.contracts.mutants import Mutant, MutantError, apply

ROOT = Path(__file__).resolve().parents[2]
PROOFS = Path(__file__).parent
BUILD = ROOT / "build" / "proofs"
TOOLS = ROOT / ".venv-halmos"
LIMIT_S = 1500
"""Timeout of one call of halmos, in seconds."""
SOLVER_OPTIONS = "--smt2-model-format --bvconst-in-decimal"
"""Options with which halmos reads the values of a counterexample. Without them it could not check that it is one."""
OUTCOMES = ("proved", "counterexample", "timeout", "stuck", "no path passes", "error")
"""Outcomes of a property, by the exit code that halmos reports for it."""


class ProofError(Exception):
    """A property or a twin could not be tried, so nothing is shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Property:
    """A promise of the contracts, the function that states it, and the twin that breaks it."""

    name: str
    contract: str
    promise: str
    file: str
    find: str
    replace: str

    @property
    def twin(self) -> Mutant:
        return Mutant(
            name=self.name, file=self.file, find=self.find, replace=self.replace, guard=self.promise, test=self.contract
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What halmos says about one property."""

    text: str
    seconds: float
    counterexample: str = ""


def read_properties(path: Path) -> list[Property]:
    """Return the list of properties. Raises ProofError if two have the same name."""
    properties = [Property(**entry) for entry in tomllib.loads(path.read_text())["property"]]
    if len({each.name for each in properties}) != len(properties):
        raise ProofError("two properties have the same name")
    return properties


def list_imports(name: str) -> set[str]:
    """Return the Solidity files of this folder that one of them needs, itself included."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        if (current := waiting.pop()) not in found:
            found.add(current)
            waiting += re.findall(r'from "\./(\w+\.sol)"', (PROOFS / current).read_text())
    return found


def make_project(folder: Path, contracts: list[str], *, twin: Mutant | None = None) -> None:
    """Copy what forge compiles. Its cache stays, so that only changed files are compiled."""
    for name in ("contracts", "tests"):
        shutil.rmtree(folder / name, ignore_errors=True)
    needed = {name for contract in contracts for name in list_imports(f"{contract}.sol")}
    sources = [*(ROOT / "contracts").rglob("*.sol"), *(PROOFS / name for name in needed)]
    for path in sources:
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        source = path.read_text()
        target.write_text(apply(twin, source) if twin and str(path.relative_to(ROOT)) == twin.file else source)
    shutil.copyfile(PROOFS / "foundry.toml", folder / "foundry.toml")
    if not (folder / "node_modules").is_symlink():
        (folder / "node_modules").symlink_to(ROOT / "node_modules")


def find_forge() -> Path:
    """Return the native program. The wrapper of npm ends with 0 even if forge fails, and old files would be judged."""
    found = sorted((TOOLS / "node_modules" / "@foundry-rs").glob("forge-*/bin/forge"))
    if not found:
        raise ProofError(f"forge is not in {TOOLS}; run `make halmos`")
    return found[0]


def run_halmos(folder: Path, properties: list[Property], *, optimizer: bool) -> dict[str, Outcome]:
    """Run halmos on properties of a project, and return an outcome for each."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    contracts = "|".join(sorted({each.contract for each in properties}))
    names = "|".join(each.name for each in properties)
    command = [str(TOOLS / "bin" / "halmos"), "--root", str(folder), "--no-status", "--early-exit", "--loop", "4"]
    command += ["--match-contract", f"^({contracts})$", "--match-test", rf"^check_({names})\("]
    command += ["--solver-command", f"{TOOLS / 'bin' / 'yices-smt2'} {SOLVER_OPTIONS}"]
    command += ["--solver-timeout-assertion", "60s", "--json-output", str(report)]
    path = os.pathsep.join([str(find_forge().parent), os.environ["PATH"]])
    env = os.environ | {"PATH": path, "FOUNDRY_SOLC": str(PROOFS / "solc.cjs"), "COLUMNS": "1000"}
    env |= {"FOUNDRY_OPTIMIZER": str(optimizer).lower()}
    done = subprocess.run(command, env=env, capture_output=True, encoding="utf-8", timeout=LIMIT_S, check=False)
    if not report.exists():
        raise ProofError(f"halmos did not run: {(done.stdout + done.stderr).strip()[-1500:]}")
    outcomes = read_report(report.read_text(), done.stdout)
    if missing := {each.name for each in properties} - set(outcomes):
        raise ProofError(f"the contracts have no property {', '.join(sorted(missing))}")
    return outcomes


def read_report(report: str, printed: str) -> dict[str, Outcome]:
    """Return the outcomes that a report of halmos has, by property, with the values of the counterexamples printed."""
    values: dict[str, str] = {}
    shown: list[str] = []
    for line in printed.splitlines():
        if value := re.match(r"^\s+p_(\w+?)_[a-z]+\d*_[0-9a-f]+_\d+ = (0x[0-9a-f]+)", line):
            shown.append(f"{value[1]} = {int(value[2], 16)}")
        elif "Counterexample: ∅" in line:
            shown = ["any arguments"]
        elif ended := re.match(r"^(?:\x1b\[\d+m)?\[\w+\](?:\x1b\[\d+m)? check_(\w+)\(", line):
            values[ended[1]], shown = ", ".join(shown), []
    outcomes: dict[str, Outcome] = {}
    for result in (each for found in json.loads(report)["test_results"].values() for each in found):
        name = result["name"].partition("(")[0].removeprefix("check_")
        text = OUTCOMES[result["exitcode"]]
        if text == "proved" and result["num_bounded_loops"]:
            text = "loops are not unrolled"
        seconds = round(result["time"][0], 1) if result["time"] else 0.0
        outcomes[name] = Outcome(text=text, seconds=seconds, counterexample=values.get(name, ""))
    return outcomes


def prove(properties: list[Property]) -> dict[str, Outcome]:
    """Try all properties on the contracts as they are."""
    make_project(BUILD / "whole", sorted({each.contract for each in properties}))
    return run_halmos(BUILD / "whole", properties, optimizer=True)


def refute(each: Property, slots: SimpleQueue[Path]) -> Outcome:
    """Try the twin of a property. It is compiled without the optimizer, which takes half as long."""
    slot = slots.get()
    try:
        make_project(slot, [each.contract], twin=each.twin)
        return run_halmos(slot, [each], optimizer=False)[each.name]
    finally:
        slots.put(slot)


def show_proofs(properties: list[Property], outcomes: dict[str, Outcome]) -> bool:
    """Print a line for each property, and return whether all hold."""
    for each in properties:
        found = outcomes[each.name]
        text = f"{found.text} {found.counterexample}".strip()
        print(f"{each.name:<41} {each.promise:<61} {found.seconds:6.1f} s  {text}", flush=True)
    return all(outcomes[each.name].text == "proved" for each in properties)


def show_twin(each: Property, found: Outcome) -> bool:
    """Print a line for a twin, and return whether it has a counterexample."""
    is_refuted = found.text == "counterexample"
    text = f"refuted by {found.counterexample}" if is_refuted else f"NOT REFUTED: {found.text}"
    print(f"twin of {each.name:<41} {found.seconds:6.1f} s  {text}", flush=True)
    return is_refuted


def fill_slots() -> SimpleQueue[Path]:
    """Return the folders of twins, of which each call of halmos takes one for itself."""
    slots: SimpleQueue[Path] = SimpleQueue()
    for number in range(count_processes()):
        slots.put(BUILD / str(number))
    return slots


def count_processes() -> int:
    return max(1, min(4, os.cpu_count() or 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", metavar="NAME", help="only this property and its twin")
    options = parser.parse_args()
    start = time.monotonic()
    properties = [each for each in read_properties(PROOFS / "proofs.toml") if options.only in {None, each.name}]
    try:
        if not properties:
            raise ProofError(f"there is no property named {options.only}")
        slots = fill_slots()
        with ThreadPoolExecutor(count_processes()) as pool:
            proofs = pool.submit(prove, properties)
            twins = [pool.submit(refute, each, slots) for each in properties]
            is_proved = show_proofs(properties, proofs.result())
            are_refuted = [show_twin(each, twin.result()) for each, twin in zip(properties, twins, strict=True)]
    except (ProofError, MutantError, subprocess.TimeoutExpired) as error:
        print(f"halmos: {error}", file=sys.stderr)
        return 2
    print(
        f"{len(properties)} properties {'proved' if is_proved else 'NOT all proved'}, their twins "
        f"{'refuted' if all(are_refuted) else 'NOT all refuted'}, in {time.monotonic() - start:.0f} s"
    )
    return 0 if is_proved and all(are_refuted) else 1


if __name__ == "__main__":
    sys.exit(main())
