"""Signed receipts with their files, kept durably before they are sent, until the operator has countersigned.

After a crash the same receipt is sent again, unchanged: a crash is never equivocation.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from covey.errors import TransientError
from covey.protocol import eip712
from covey.protocol.api.common import ReceiptBody
from covey.protocol.api.worker import SubmissionAnswer
from covey.protocol.messages import Receipt
from covey.runtime.files import write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedSubmission:
    """What is sent for one lease."""

    receipt: Receipt
    signature: str
    file: bytes
    first_time: int
    """Time of the chain's newest block when it was first sent."""
    first_epochs: int
    """How many epochs the ledger had then."""


KEPT_REFUSED = 256


@contextmanager
def _explain_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TransientError("disk_full", f"work could not be kept: {error}") from error


class SubmissionStore:
    """A folder with one file of rollouts and one of JSON for every parcel; the JSON comes last and makes it count."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (root / "sent").mkdir(parents=True, exist_ok=True)
        (root / "refused").mkdir(exist_ok=True)

    def list_refused(self) -> list[int]:
        """The newest leases whose receipt was refused for good: a second one is never signed for them."""
        names = [path.name for path in (self._root / "refused").iterdir()]
        leases = sorted(int(name) for name in names if name.isdigit())  # not the draft of a process that was killed
        return leases[-KEPT_REFUSED:]

    def list_unsent(self) -> list[int]:
        """Leases whose parcel nobody has countersigned yet."""
        return [int(path.stem.partition("-")[2]) for path in self._root.glob("*-*.json")]

    def has_signed(self, task: int, lease: int) -> bool:
        """Whether a receipt was signed for this slot, whatever became of it: another one would be equivocation."""
        name = f"{task}-{lease}.json"
        kept = (self._root / name, self._root / "sent" / name, self._root / "refused" / str(lease))
        return any(path.exists() for path in kept)

    def add(self, parcel: SignedSubmission) -> None:
        """Keep a parcel; after this returns it survives a crash.  Raises TransientError("disk_full")."""
        with _explain_disk():
            self._add(parcel)

    def _add(self, parcel: SignedSubmission) -> None:
        name = f"{parcel.receipt.task}-{parcel.receipt.lease}"
        write_atomically(self._root / f"{name}.parquet", parcel.file)
        values = {
            "receipt": eip712.to_dict(parcel.receipt),
            "signature": parcel.signature,
            "first_time": parcel.first_time,
            "first_epochs": parcel.first_epochs,
        }
        write_atomically(self._root / f"{name}.json", json.dumps(values).encode())

    def list(self) -> Iterator[SignedSubmission]:
        """Parcels that nobody has countersigned yet, oldest lease first."""
        for path in sorted(self._root.glob("*-*.json"), key=lambda p: int(p.stem.partition("-")[2])):
            yield self._load(path)

    def close(self, parcel: SignedSubmission, answer: SubmissionAnswer | None) -> None:
        """Done with a parcel: keep receipt and promise as evidence, or only its lease when it was refused.  Raises
        TransientError("disk_full"): it is sent again, and answered alike."""
        with _explain_disk():
            self._close(parcel, answer)

    def _close(self, parcel: SignedSubmission, answer: SubmissionAnswer | None) -> None:
        path = self._root / f"{parcel.receipt.task}-{parcel.receipt.lease}.json"
        if answer is not None:
            values = {
                "receipt": eip712.to_dict(parcel.receipt),
                "signature": parcel.signature,
                "countersignature": answer.model_dump(),
            }
            write_atomically(self._root / "sent" / path.name, json.dumps(values).encode())
        else:
            write_atomically(self._root / "refused" / str(parcel.receipt.lease), b"")
        path.unlink(missing_ok=True)
        path.with_suffix(".parquet").unlink(missing_ok=True)

    def _load(self, path: Path) -> SignedSubmission:
        values = json.loads(path.read_bytes())
        return SignedSubmission(
            receipt=ReceiptBody.model_validate(values["receipt"]).to_message(),
            signature=values["signature"],
            file=path.with_suffix(".parquet").read_bytes(),
            first_time=values["first_time"],
            first_epochs=values["first_epochs"],
        )
