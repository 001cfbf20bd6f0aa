"""The folder of this user's state that belongs to no pool: locks of accounts, and transactions of commands."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def open_state_folder() -> Path:
    """Return Covey's folder below XDG_STATE_HOME or ~/.local/state, and create it for this user alone.

    If it cannot be created, as for a system user without a home, it is a folder of this user in the temporary folder.
    """
    root = os.environ.get("XDG_STATE_HOME", "")
    folder = (Path(root) if Path(root).is_absolute() else Path.home() / ".local" / "state") / "covey"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: the user has no home.
        pass
    folder = Path(tempfile.gettempdir()) / f"covey-{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder
