"""The id by which the coordinator distinguishes two workers that use the same node key."""

import re
import secrets
from pathlib import Path

from covey.errors import OperatorError
from covey.runtime.files import write_atomically


def load_instance(home: Path) -> str:
    """Return this worker's id of 32 hexadecimal digits. It is created at the first start and read at later starts.

    Raises OperatorError("bad_instance") if the file has other content.
    """
    path = home / "instance"
    if not path.exists():
        write_atomically(path, secrets.token_hex(16).encode() + b"\n", mode=0o600)
    text = path.read_text(errors="replace").strip()
    if not re.fullmatch("[0-9a-f]{32}", text):
        raise OperatorError(
            "bad_instance",
            f"the instance file {path} does not contain 32 hexadecimal digits",
            fix=f"Remove {path}; the worker creates a new one",
        )
    return text
