"""Signed receipts with their files, stored durably before they are sent, until the operator has countersigned.

After a crash the same receipt is sent again unchanged, so a crash never causes equivocation.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from covey.errors import ProtocolError, TransientError
from covey.protocol import eip712
from covey.protocol.api.common import ReceiptBody
from covey.protocol.api.worker import SubmissionResponse
from covey.protocol.messages import Receipt
from covey.runtime.files import write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedSubmission:
    """Receipt, signature and file of one lease."""

    receipt: Receipt
    signature: str
    file: bytes
    first_time: int
    """Time of the chain's newest block, in Unix seconds, when the receipt was signed."""


KEPT_REFUSED = 256
"""Maximum number of refused leases that a claim lists."""


@contextmanager
def _explain_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TransientError("disk_full", f"a submission could not be stored in the home folder: {error}") from error


class SubmissionStore:
    """A folder with one Parquet file of rollouts and one JSON file per submission.

    The JSON file is written last. A submission without it is ignored.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.refused_in_a_row = 0
        """Number of submissions that were finally refused since one was last countersigned."""
        (root / "sent").mkdir(parents=True, exist_ok=True)
        self.refused = root / "refused"
        """Folder with the refused receipts and the reasons, one JSON file for each lease."""
        self.refused.mkdir(exist_ok=True)

    def list_refused(self) -> list[int]:
        """Return the newest leases whose receipt was finally refused. No second receipt is signed for them."""
        names = [path.name for path in self.refused.iterdir()]
        leases = sorted(int(name) for name in names if name.isdigit())  # skips drafts of a process that was killed
        return leases[-KEPT_REFUSED:]

    def list_unsent(self) -> list[int]:
        """Return the leases whose submission has not been countersigned yet."""
        return [int(path.stem.partition("-")[2]) for path in self._root.glob("*-*.json")]

    def has_signed(self, task: int, lease: int) -> bool:
        """Return whether a receipt was ever signed for this lease. Signing a second one would be equivocation."""
        name = f"{task}-{lease}.json"
        kept = (self._root / name, self._root / "sent" / name, self.refused / str(lease))
        return any(path.exists() for path in kept)

    def add(self, submission: SignedSubmission) -> None:
        """Store a submission durably. After that it survives a crash.

        Raises TransientError("disk_full").
        """
        with _explain_disk():
            self._add(submission)

    def _add(self, submission: SignedSubmission) -> None:
        name = f"{submission.receipt.task}-{submission.receipt.lease}"
        write_atomically(self._root / f"{name}.parquet", submission.file)
        values = {
            "receipt": eip712.to_dict(submission.receipt),
            "signature": submission.signature,
            "first_time": submission.first_time,
        }
        write_atomically(self._root / f"{name}.json", json.dumps(values).encode())

    def list(self) -> Iterator[SignedSubmission]:
        """Yield the submissions that have not been countersigned yet, oldest lease first."""
        for path in sorted(self._root.glob("*-*.json"), key=lambda p: int(p.stem.partition("-")[2])):
            yield self._load(path)

    def close(
        self, submission: SignedSubmission, answer: SubmissionResponse | ProtocolError, *, is_late: bool = False
    ) -> None:
        """Close a submission: keep receipt and promise as evidence, or the receipt with the reason of its refusal.

        A refusal of what was sent late (`is_late`) is not counted: its lease may be over. Raises
        TransientError("disk_full"). The submission is then sent again and gets the same response.
        """
        with _explain_disk():
            self._close(submission, answer)
        if not isinstance(answer, ProtocolError):
            self.refused_in_a_row = 0
        elif not is_late:
            self.refused_in_a_row += 1

    def _close(self, submission: SignedSubmission, answer: SubmissionResponse | ProtocolError) -> None:
        path = self._root / f"{submission.receipt.task}-{submission.receipt.lease}.json"
        values = {"receipt": eip712.to_dict(submission.receipt), "signature": submission.signature}
        if isinstance(answer, ProtocolError):
            refusal = values | {"refusal": {"code": answer.code, "message": answer.message}}
            write_atomically(self.refused / str(submission.receipt.lease), json.dumps(refusal).encode())
        else:
            promise = values | {"countersignature": answer.model_dump()}
            write_atomically(self._root / "sent" / path.name, json.dumps(promise).encode())
        path.unlink(missing_ok=True)
        path.with_suffix(".parquet").unlink(missing_ok=True)

    def _load(self, path: Path) -> SignedSubmission:
        values = json.loads(path.read_bytes())
        return SignedSubmission(
            receipt=ReceiptBody.model_validate(values["receipt"]).to_message(),
            signature=values["signature"],
            file=path.with_suffix(".parquet").read_bytes(),
            first_time=values["first_time"],
        )
