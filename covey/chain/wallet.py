"""A key that signs transactions and messages. It is read from a file, never from a command line, and never printed.

Each process has one key.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coincurve import PrivateKey

from covey.chain.keystore import decrypt_keystore, encrypt_key, read_private_file
from covey.errors import OperatorError
from covey.protocol.ids import Address, Hash, hash_from_bytes
from covey.protocol.secp256k1 import get_address, sign_digest


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedTransaction:
    """A signed transaction, which is stored before it is sent."""

    hash: Hash
    raw: bytes


@dataclass(frozen=True, slots=True)
class Wallet:
    """One key of 32 bytes. It implements `covey.protocol.eip712.Signer`. Raises ValueError if the key is not valid."""

    key: bytes = field(repr=False)
    address: Address = field(init=False)
    _key: PrivateKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise ValueError("a key has 32 bytes")  # coincurve would pad a shorter one
        private = PrivateKey(self.key)
        object.__setattr__(self, "_key", private)
        object.__setattr__(self, "address", get_address(private))

    def sign_transaction(self, transaction: dict[str, Any]) -> SignedTransaction:
        """Sign an EIP-1559 transaction. Signing the same transaction again returns the same bytes (RFC 6979)."""
        from covey.protocol.accounts import Account

        signed = Account.sign_transaction(transaction, self.key)
        return SignedTransaction(hash=hash_from_bytes(bytes(signed.hash)), raw=bytes(signed.raw_transaction))

    def sign_digest(self, digest: bytes) -> bytes:
        """Return the signature of a digest of 32 bytes: r, s and v, 65 bytes."""
        return sign_digest(self._key, digest)


def wallet_from_key(key: bytes) -> Wallet:
    """Return the wallet of a 32-byte key. Raises ValueError if the bytes are not a valid key."""
    return Wallet(key)


def load_key(path: Path) -> Wallet:
    """Read a key from a file that only its owner may read: 32 bytes in hexadecimal, or a keystore with a passphrase.

    Raises OperatorError("no_key") if the file cannot be read, OperatorError("bad_key") if it does not contain a key,
    OperatorError("key_exposed") if other users can access it, and OperatorError("no_passphrase").
    """
    fix = "Use a file that contains one private key in hexadecimal, or a keystore"
    data = read_private_file(path, fix=fix)
    try:
        text = data.decode().strip()
        key = decrypt_keystore(path, text) if text.startswith("{") else bytes.fromhex(text.removeprefix("0x"))
        return wallet_from_key(key)
    except ValueError:
        # The cause is left out, because its message may contain the key.
        raise OperatorError("bad_key", f"the file {path} does not contain a valid private key", fix=fix) from None


def save_key(path: Path, key: bytes, *, passphrase: str | None = None) -> Wallet:
    """Write a key to a new file that only its owner may read, as a keystore if there is a passphrase.

    Raises OperatorError("key_exists") if the file exists, and OperatorError("no_folder") if it cannot be created.
    """
    text = "0x" + key.hex() + "\n" if passphrase is None else encrypt_key(key, passphrase)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise OperatorError("key_exists", f"the key file {path} already exists", fix="Choose a new file") from error
    except OSError as error:
        raise OperatorError(
            "no_folder",
            f"the key file {path} cannot be created: {error.strerror}",
            fix="Choose a file in a folder that you can write to",
        ) from error
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    return wallet_from_key(key)
