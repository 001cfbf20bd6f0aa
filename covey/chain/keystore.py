"""Encrypted key files: the JSON keystores (version 3) of Geth and eth-account.

The passphrase is in the file that COVEY_PASSPHRASE_FILE names, or is typed on the terminal. It is never an argument.
"""

import getpass
import json
import os
import stat
import sys
from functools import cache
from pathlib import Path

from covey.errors import OperatorError

PASSPHRASE_FILE = "COVEY_PASSPHRASE_FILE"  # noqa: S105 (a name)
"""Environment variable with the path of the file that holds the passphrase in its first line."""


def read_private_file(path: Path, *, fix: str) -> bytes:
    """Return the content of a file that only its owner may read.

    Raises OperatorError("no_key") if it cannot be read, and OperatorError("key_exposed") if others can access it.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read()
    except OSError as error:
        raise OperatorError("no_key", f"the key file {path} cannot be read: {error.strerror}", fix=fix) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise OperatorError(
            "key_exposed",
            f"the key file {path} is accessible to other users, with mode {mode:o}",
            fix=f"Run chmod 600 {path}",
        )
    return data


def encrypt_key(key: bytes, passphrase: str) -> str:
    """Return a keystore with a key."""
    from covey.protocol.accounts import Account

    return json.dumps(Account.encrypt(key, passphrase)) + "\n"


@cache
def decrypt_keystore(path: Path, text: str) -> bytes:
    """Return the key in a keystore. `path` is the keystore's file. The passphrase is asked for once in a process.

    Raises OperatorError("no_passphrase") or OperatorError("bad_key").
    """
    from covey.protocol.accounts import Account

    passphrase = read_passphrase(path)
    try:
        return bytes(Account.decrypt(text, passphrase))
    except (ValueError, LookupError, TypeError, AttributeError, NotImplementedError):
        # The cause is left out, because its message may contain parts of the file.
        raise OperatorError(
            "bad_key",
            f"the keystore {path} cannot be decrypted",
            fix=f"Correct the passphrase in the file of {PASSPHRASE_FILE}, or use a keystore of version 3",
        ) from None


def read_passphrase(path: Path, *, is_new: bool = False) -> str:
    """Return the passphrase of a keystore, from its file or the terminal. A new one is typed twice.

    Raises OperatorError("no_passphrase").
    """
    file = os.environ.get(PASSPHRASE_FILE)
    if file:
        lines = read_private_file(Path(file), fix=f"Correct {PASSPHRASE_FILE}").decode(errors="replace").splitlines()
        passphrase = lines[0] if lines else ""
    elif sys.stdin.isatty():
        passphrase = getpass.getpass(f"Passphrase of {path}: ")
        if is_new and getpass.getpass("The same again: ") != passphrase:
            raise OperatorError("no_passphrase", "the two passphrases differ", fix="Run this command again")
    else:
        passphrase = ""
    if not passphrase:
        raise OperatorError(
            "no_passphrase",
            f"the passphrase of the keystore {path} is missing",
            fix=f"Set {PASSPHRASE_FILE} to a file that contains it, or run this command on a terminal",
        )
    return passphrase
