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
    subject = f"{field} is " if field else ""
    if not isinstance(text, str) or not _SHAPE.fullmatch(text):
        wrong, fix = "not an address", "Name one as covey wallet show prints it"
    elif text in (text.lower(), "0x" + text[2:].upper()):
        wrong, fix = "without a checksum (EIP-55)", "Copy the address as covey wallet show prints it"
    else:
        wrong, fix = "mistyped: its checksum (EIP-55) is wrong", "Copy the address as covey wallet show prints it"
    raise OperatorError("bad_address", f"{subject}{text}, {wrong}", fix=fix)


def is_example(address: Address) -> bool:
    """Return whether this is an example from the shipped configs: one digit forty times, without a known key."""
    return _SAME_DIGIT.fullmatch(address) is not None
