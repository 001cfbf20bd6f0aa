"""Empties the scratch folder after each call."""

import os
import stat
from pathlib import Path

MAX_ENTRIES = 1000
"""Maximum number of files and folders to remove one by one.

If a call leaves more, the zygote and its folder are replaced.
"""


def empty(folder: Path, *, max_entries: int = MAX_ENTRIES) -> bool:
    """Remove everything that a call has left. Return whether the folder is empty now.

    Nesting, modes and names may be hostile.
    """
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
    """Remove a file or folder, and return the number of processed entries.

    Folders inside a folder are first moved to `top`, so a folder with very many entries needs a further pass.
    """
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return 1
    os.chmod(path, 0o700)
    inner = os.listdir(path)[:MAX_ENTRIES]
    for name in inner:
        entry = path / name
        if stat.S_ISDIR(os.lstat(entry).st_mode):
            # Folders move to the top instead of being descended into: deep nesting needs no stack and no long path.
            os.chmod(entry, 0o700)  # only a folder that its owner may write to can be moved to another parent
            os.rename(entry, _find_free(top))
        else:
            os.unlink(entry)
    if len(inner) < MAX_ENTRIES:
        os.rmdir(path)
    return len(inner) + 1


def _find_free(top: Path) -> Path:
    number = 0
    while os.path.lexists(top / f"moved-{number}"):
        number += 1
    return top / f"moved-{number}"
