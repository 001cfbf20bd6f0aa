"""Run Slither on the contracts and judge its report.  `make slither` compiles them into build/slither and calls this.

Fails on a finding above informational, on a slither-disable comment without a reason above it, and on one that hides no
finding.  A disabling comment names its detectors.  Only `timestamp` may be off between a start and an end, because most
functions compare times.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "build" / "slither" / "report.json"
IMPACTS = ("High", "Medium", "Low", "Informational", "Optimization")
ALLOWED = re.compile(r"// slither-disable-(next-line (?!all\b)[a-z0-9-]+(,[a-z0-9-]+)*|(start|end) timestamp)")


def find_bare_disables(name: str, source: str) -> list[str]:
    """Return the disabling comments that are malformed, or that have no comment of at least three words above them."""
    wrong = []
    words = 0
    for number, line in enumerate(map(str.strip, source.splitlines()), start=1):
        if "slither-disable" in line:
            if not ALLOWED.fullmatch(line):
                wrong.append(f"{name}:{number}: malformed: {line}")
            elif words < 3 and not line.startswith("// slither-disable-end"):
                wrong.append(f"{name}:{number}: no reason in the comment above: {line}")
            words = 0
        else:
            is_prose = line.startswith("//") and "solhint-" not in line
            words = words + len(line.split()) - 1 if is_prose else 0
    return wrong


def run_slither() -> list[dict[str, Any]]:
    """Run Slither and return all findings except those about dependencies only.  Tests are not compiled or checked."""
    REPORT.unlink(missing_ok=True)
    command = [str(Path(sys.executable).with_name("slither")), ".", "--compile-force-framework", "hardhat"]
    command += ["--npx-disable", "--hardhat-ignore-compile", "--hardhat-artifacts-directory", "build/slither/artifacts"]
    command += ["--exclude-dependencies", "--warn-unused-ignores", "--json", str(REPORT)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    if not report.get("success"):
        raise SystemExit(f"slither did not run: {report.get('error') or done.stderr}")
    found: list[dict[str, Any]] = report["results"].get("detectors", [])
    return found


def list_unused(finding: dict[str, Any]) -> list[str]:
    """Return the disabling comments of this project that hide no finding."""
    wrong = []
    for each in finding["unused_ignores"]:
        path = Path(each["file"])
        if "node_modules" not in path.parts:
            names = ", ".join(each["unused_detectors"])
            wrong.append(f"{path.relative_to(ROOT)}:{each['line']}: hides no finding: {names}")
    return wrong


def main() -> int:
    wrong = [
        line
        for path in sorted((ROOT / "contracts").rglob("*.sol"))
        for line in find_bare_disables(str(path.relative_to(ROOT)), path.read_text())
    ]
    counts: Counter[str] = Counter()
    for finding in run_slither():
        if "unused_ignores" in finding:
            wrong += list_unused(finding)
            continue
        counts[str(finding["impact"])] += 1
        if finding["impact"] in IMPACTS[:3]:
            wrong.append(f"{finding['impact']}: {finding['check']}: {str(finding['description']).strip()}")
    print("\n".join(dict.fromkeys(wrong)))
    print("slither: " + ", ".join(f"{counts[impact]} {impact.lower()}" for impact in IMPACTS))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
