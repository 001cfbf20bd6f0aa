"""JSON documents from untrusted peers: strict models, and parsing whose errors have a bounded size."""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from covey.errors import ProtocolError
from covey.protocol.ids import Hash

HashText = Annotated[Hash, Field(pattern=r"^0x[0-9a-f]{64}$")]
"""A hash in a document."""

MAX_ERRORS = 8
"""Maximum number of errors that are described. A hostile document can have millions."""
MAX_TEXT = 1000
"""Maximum number of characters of a description. An error can contain a key of any length."""


class PeerModel(BaseModel):
    """Base of models that a peer sends. Errors do not contain the input, which can be large.

    A sequence of other models needs `FailFast`, so that only its first invalid item is reported.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


Model = TypeVar("Model", bound=PeerModel)


def parse(model: type[Model], data: bytes, *, name: str, code: str, max_bytes: int) -> Model:
    """Parse a document. `name` is what the error calls it, for example "head".

    Raises ProtocolError(code) if `data` exceeds `max_bytes` or is not a valid document.
    """
    if len(data) > max_bytes:
        raise ProtocolError(code, f"the {name} exceeds {max_bytes} bytes", status=502)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        # It is not the cause of the ProtocolError, because a log of a traceback would print all errors.
        count = error.error_count()
        text = str(error)[:MAX_TEXT] if count <= MAX_ERRORS else f"{count} errors"
        raise ProtocolError(code, f"the {name} is invalid: {text}", status=502) from None
