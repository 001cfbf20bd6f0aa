"""The fenced commands of a document, as a reader would type them.

A fence whose language is `sh` holds commands. One that cannot run in a test has a comment on the line before it that
says why: `<!-- not run: installs everything -->`.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = {"nginx", "sh", "toml", "text", "json", "python", "mermaid", "yaml"}
_FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?^```(?P<language>[^\n]*)\n(?P<body>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One fenced block. Example: document="README.md", language="sh", body="covey up mypool", reason=""."""

    document: str
    language: str
    body: str
    reason: str
    """Reason why its commands do not run in a test. Empty if they do."""


def read_fences(path: Path) -> list[Fence]:
    """Return all fences of a Markdown file in order."""
    return [
        Fence(
            document=path.name,
            language=match["language"],
            body=match["body"].strip(),
            reason=match["reason"] or "",
        )
        for match in _FENCE.finditer(path.read_text())
    ]


def run_guide(name: str, folder: Path, *, columns: int = 80) -> list[str]:
    """Run the commands of a guide in order in `folder`, and return what each fence prints."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": str(columns)}
    printed = []
    for fence in read_fences(ROOT / "docs" / "guides" / name):
        if fence.language != "sh" or fence.reason:
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", fence.body],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{fence.body}\n{done.stdout}{done.stderr}"
        printed.append(done.stdout)
    return printed
