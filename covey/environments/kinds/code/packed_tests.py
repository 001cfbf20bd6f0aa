"""Unpacks the private tests of LiveCodeBench. Nothing is unpickled."""

import base64
import binascii
import pickletools
import zlib
from typing import cast

MAX_PACKED_BYTES = 32 << 20
"""Maximum size in bytes of packed tests after unpacking."""
_TEXT_OPCODES = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}
_QUIET_OPCODES = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}


def unpack_text(packed: str) -> str:
    """Unpack a string that is packed as in LiveCodeBench: pickle, then zlib, then base64.

    Nothing is unpickled: a pickle with anything but one string is refused. Raises ValueError for any other data, or if
    the string exceeds `MAX_PACKED_BYTES`.
    """
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(packed, validate=True), MAX_PACKED_BYTES)
        if not unpacking.eof:
            raise ValueError(f"the packed tests are cut off, or longer than {MAX_PACKED_BYTES} bytes")
        texts: list[str] = []
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _TEXT_OPCODES:
                texts.append(cast(str, argument))
            elif opcode.name not in _QUIET_OPCODES:
                raise ValueError(f"the packed tests are a pickle with {opcode.name}, which is more than a string")
        (text,) = texts
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError(f"the packed tests cannot be read: {error!s:.200}") from error
    return text
