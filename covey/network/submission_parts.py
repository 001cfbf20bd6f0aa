"""Reads a coordinator's list of submissions in parts, because one answer has at most MAX_ROWS of them."""

from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise

from pydantic import TypeAdapter, ValidationError

from covey.errors import ProtocolError
from covey.protocol.api.public import MAX_ROWS, SubmissionView

_PART = TypeAdapter(list[SubmissionView])


async def read_parts(
    get: Callable[[str], Awaitable[bytes]], *, limit: int, filters: Mapping[str, str | int | None]
) -> list[SubmissionView]:
    """Return at most `limit` submissions, newest first. `get` returns the body of the answer to a path.

    Raises ProtocolError("bad_answer") if an answer is not such a list, or does not follow the one before.
    """
    found: list[SubmissionView] = []
    while len(found) < limit:
        size = min(MAX_ROWS, limit - len(found))
        named = {**filters, **({"before": found[-1].task} if found else {})}
        query = "".join(f"&{name}={value}" for name, value in named.items() if value is not None)
        try:
            part = _PART.validate_json(await get(f"/v1/submissions?limit={size}{query}"))
        except ValidationError as error:
            text = "the coordinator's response is not a valid list of submissions"
            raise ProtocolError("bad_answer", text) from error
        if any(earlier.task <= later.task for earlier, later in pairwise([*found[-1:], *part])):
            raise ProtocolError("bad_answer", "the coordinator returned submissions that are not newest first")
        found += part
        if len(part) < size:
            break
    return found[:limit]
