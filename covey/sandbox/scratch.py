"""The scratch folder, emptied after each call."""

import os
import stat
from pathlib import Path

MAX_ENTRIES = 1000
"""Files and folders that are removed one by one; a zygote with more is replaced, folder and all."""


def empty(folder: Path, *, max_entries: int = MAX_ENTRIES) -> bool:
    """Remove all that a call has left; whether nothing is left.  Nesting, modes and names may be hostile."""
    removed = 0
    try:
        os.chmod(folder, 0o700)
        while names := os.listdir(folder):
            for name in names:
                removed += _remove(folder / name, folder)
                if removed > max_entries:
                    return False
    except OSError:
        return False
    return True


def _remove(path: Path, top: Path) -> int:
    """Remove a file or folder, whose own folders go to the top first; return how many entries were met."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return 1
    os.chmod(path, 0o700)
    inner = os.listdir(path)[:MAX_ENTRIES]
    for name in inner:
        place = path / name
        if stat.S_ISDIR(os.lstat(place).st_mode):
            # Up by one instead of down by one: a thousand levels need neither a stack nor a long path.
            os.chmod(place, 0o700)  # only a folder that its owner may write to is renamed
            os.rename(place, _find_free(top))
        else:
            os.unlink(place)
    if len(inner) < MAX_ENTRIES:
        os.rmdir(path)
    return len(inner) + 1


def _find_free(top: Path) -> Path:
    number = 0
    while os.path.lexists(top / f"moved-{number}"):
        number += 1
    return top / f"moved-{number}"
