"""Signed receipts in files: the files that a worker keeps, or files that anyone presents in a dispute."""

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from covey.errors import OperatorError, ProtocolError
from covey.protocol.api.common import ReceiptBody, SignatureText
from covey.protocol.api.worker import SubmissionResponse
from covey.protocol.eip712 import compute_struct_hash
from covey.protocol.ids import Hash
from covey.protocol.messages import Countersignature, Receipt

MAX_FILE_BYTES = 1 << 16
"""Maximum size of a receipt file. Receipt and promise take about 2 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedReceipt:
    """A receipt with its node's signature, and with the operator's promise if it is countersigned."""

    receipt: Receipt
    receipt_hash: Hash
    signature: str
    promise: Countersignature | None
    promise_signature: str


def read_receipt_file(file: Path) -> SignedReceipt:
    """Read a receipt file that a worker keeps, or any JSON with the same `receipt` and `signature`.

    Signatures are not checked, because the contracts check them. Raises OperatorError("bad_receipt_file") if the file
    does not contain a receipt, or if its promise is for a different one.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"the file is larger than {MAX_FILE_BYTES} bytes")
        values = json.loads(data)
        receipt = ReceiptBody.model_validate(values["receipt"]).to_message()
        receipt_hash = compute_struct_hash(receipt)
        signature = TypeAdapter(SignatureText).validate_python(values["signature"])
        countersignature = values.get("countersignature")
        answer = None if countersignature is None else SubmissionResponse.model_validate(countersignature)
        if answer is not None and answer.receipt_hash != receipt_hash:
            raise ValueError("the countersignature in it is for a different receipt")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, ProtocolError) as error:
        reason = str(error).partition("\n")[0]
        raise OperatorError(
            "bad_receipt_file",
            f"{file} does not contain a signed receipt: {reason}",
            fix="Use a file from the worker's folder outgoing/sent, or JSON with receipt and signature",
        ) from error
    promise = None
    if answer is not None:
        promise = Countersignature(receipt_hash=answer.receipt_hash, signed_at=answer.signed_at, due_by=answer.due_by)
    return SignedReceipt(
        receipt=receipt,
        receipt_hash=receipt_hash,
        signature=signature,
        promise=promise,
        promise_signature="" if answer is None else answer.signature,
    )
