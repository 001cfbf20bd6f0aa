"""Signed epochs in the validator's home, for `covey epoch post` when the operator is gone.

`3.json` is the file of epoch 3, and `3.signature` is this validator's signature over its header.
"""

from pathlib import Path

from covey.protocol import canonical
from covey.protocol.api.common import MAX_EPOCH_BYTES
from covey.protocol.epochs import EpochHeader
from covey.runtime.files import write_atomically

MOST = 8
"""Number of epochs that are kept."""


class KeptEpochs:
    """A folder with the newest epochs that this validator has signed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def keep(self, header: EpochHeader, data: bytes, signature: str) -> None:
        """Store the file of an epoch and the signature over its header, and delete the oldest ones above MOST."""
        self._root.mkdir(parents=True, exist_ok=True)
        write_atomically(self._root / f"{header.epoch}.json", data)
        write_atomically(self._root / f"{header.epoch}.signature", signature.encode())
        for epoch in self.list_epochs()[MOST:]:
            for ending in ("json", "signature"):
                (self._root / f"{epoch}.{ending}").unlink(missing_ok=True)

    def list_epochs(self) -> list[int]:
        """Return the numbers of the kept epochs, newest first."""
        names = [path.stem for path in self._root.glob("*.json")]
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def find(self, header: EpochHeader) -> bytes | None:
        """Return the file of a header. None if it is not kept."""
        try:
            with (self._root / f"{header.epoch}.json").open("rb") as file:
                data = file.read(MAX_EPOCH_BYTES)
        except OSError:
            return None
        return data if canonical.sha256(data) == header.data_hash else None
