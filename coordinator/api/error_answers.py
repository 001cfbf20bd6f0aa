"""Answers of the API to errors: an `ErrorBody` with a stable code. What the operator's network looks like stays out."""

from covey.errors import CoveyError, ProtocolError, TransientError
from covey.protocol.api.common import ErrorBody
from covey.runtime.log import get_logger


def describe_error(error: CoveyError, now: float) -> tuple[int, ErrorBody]:
    """Return the status and the body of the answer to an error, and log what only the operator may see."""
    status, message = 500, "the coordinator's set-up is wrong; its log says more"
    if isinstance(error, ProtocolError):
        status, message = error.status, error.message
    elif isinstance(error, TransientError):
        status, message = 503, "the coordinator waits for something that it needs; try again"
        get_logger().warning("request cannot be answered now", code=error.code, message=error.message)
    else:
        get_logger().error("request failed", code=error.code, message=error.message)
    return status, ErrorBody(code=error.code, message=message, time=int(now))
