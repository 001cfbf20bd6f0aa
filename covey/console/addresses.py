"""Parses addresses that people type. The checksum must be right, because one wrong digit is a different account."""

import re

from covey.errors import OperatorError
from covey.protocol.ids import Address, is_address

_SHAPE = re.compile("0x[0-9a-fA-F]{40}")
_SAME_DIGIT = re.compile(r"0x([0-9a-fA-F])\1{39}")


def read_address(text: object, field: str = "") -> Address:
    """Parse an address. `field` says where it was read. Raises OperatorError("bad_address")."""
    if isinstance(text, str) and is_address(text):
        return Address(text)
    if not isinstance(text, str) or not _SHAPE.fullmatch(text):
        wrong, fix = "is not an address", "Use an address in the form that covey wallet show prints"
    elif text in (text.lower(), "0x" + text[2:].upper()):
        wrong, fix = "has no checksum (EIP-55)", "Copy the address from the output of covey wallet show"
    else:
        wrong, fix = (
            "is mistyped: its checksum (EIP-55) is wrong",
            "Copy the address from the output of covey wallet show",
        )
    message = f"{field} is {text}, which {wrong}" if field else f"{text} {wrong}"
    raise OperatorError("bad_address", message, fix=fix)


def is_example(address: Address) -> bool:
    """Return whether this is an example from the shipped configs: one digit forty times, without a known key."""
    return _SAME_DIGIT.fullmatch(address) is not None
