"""The fenced commands of a document, as a reader would type them.

A fence whose language is `sh` holds commands. One that cannot run in a test has a comment on the line before it that
says why: `<!-- not run: installs everything -->`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

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
