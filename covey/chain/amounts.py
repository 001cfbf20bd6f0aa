"""Amounts of a token as people write them: "1.5 CVT" for 1500000000000000000 smallest units.

Decimals and symbol come from a token that the pool's operator chose. They are untrusted, so this module bounds both.
"""

import re
from dataclasses import dataclass
from decimal import Context, Decimal

from covey.chain.token import Token
from covey.errors import OperatorError, ProtocolError, TransientError

MAX_AMOUNT = (1 << 256) - 1
MAX_DECIMALS = 36
MAX_SYMBOL = 16
NO_SYMBOL = "tokens"
"""Symbol of a token whose own symbol is missing or cannot be shown."""
_FORM = re.compile(r"([0-9]{1,78}(?:\.[0-9]{1,78})?)(?: *([^\s0-9.,]\S*))?")
_EXACT = Context(prec=256)
"""Decimal context that is exact for 78 digits on either side of the point, shifted by `MAX_DECIMALS`."""
_SLIP = 10**6
"""Ratio of an amount to the balance above which the amount was probably meant in the smallest unit."""


@dataclass(frozen=True, slots=True)
class TokenUnit:
    """Unit in which amounts are parsed and formatted. Example: TokenUnit(18, "CVT")."""

    decimals: int
    """Number of digits after the point, from 0 to `MAX_DECIMALS`."""
    symbol: str
    """Name that is printed after an amount. Empty for the smallest unit."""


SMALLEST = TokenUnit(0, "")
"""The token's smallest unit, which contracts use."""


ETHER = TokenUnit(18, "ether")
"""Unit of gas and of the bonds of challenges. Its smallest unit is the wei."""


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount with its `unit`, which determines how it is printed.

    Example: str(Amount(15, TokenUnit(1, "CVT"))) is "1.5 CVT".
    """

    value: int
    """The amount in the token's smallest unit."""
    unit: TokenUnit

    def __str__(self) -> str:
        return format_amount(self.value, self.unit)


def read_unit(token: Token) -> TokenUnit:
    """Return the unit of a token. Raises OperatorError("odd_token") if its decimals are unknown or over 36."""
    try:
        decimals = token.decimals()
    except (ProtocolError, TransientError) as error:
        if error.code not in ("reverted", "no_contract"):
            raise
        raise _refuse_token(f"the token {token.address} does not report its decimals") from error
    if decimals > MAX_DECIMALS:
        raise _refuse_token(f"the token {token.address} has {decimals} decimals, but the maximum is {MAX_DECIMALS}")
    try:
        symbol = clean_symbol(token.symbol())
    except (ProtocolError, TransientError) as error:
        if error.code not in ("reverted", "no_contract"):
            raise
        symbol = NO_SYMBOL
    return TokenUnit(decimals, symbol)


def clean_symbol(text: str) -> str:
    """Return a token's symbol shortened to `MAX_SYMBOL` printable characters, without blanks.

    Returns `NO_SYMBOL` if the result is empty or looks like a number.
    """
    shown = "".join(c for c in text[:256] if c.isprintable() and not c.isspace())[:MAX_SYMBOL]
    return shown if shown and not (shown[0].isdigit() or shown[0] in ".,") else NO_SYMBOL


def parse_amount(text: str, unit: TokenUnit, *, least: int = 1) -> int:
    """Parse `text` in `unit` and return the exact number of smallest units. Example: parse_amount("1.5 CVT", unit).

    Raises OperatorError("bad_amount") if `text` is not a number, has a different symbol or has more digits than the
    unit. Also raises it for a value below `least` or above the maximum of a contract.
    """
    shown = text if text.isprintable() and len(text) <= 200 else repr(text[:200])
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise _refuse(f"{shown} is not a valid amount", unit)
    number, symbol = match[1], match[2]
    if symbol is not None and symbol != unit.symbol:
        raise _refuse(f"{shown} is not an amount in {unit.symbol or 'the smallest unit'}", unit)
    scaled = Decimal(number).scaleb(unit.decimals, _EXACT)
    value = int(scaled)
    if value != scaled:
        digits = f"{unit.decimals} decimal places" if unit.decimals else "no decimal places"
        raise _refuse(f"{shown} has too many decimal places: {unit.symbol or 'the smallest unit'} has {digits}", unit)
    if not least <= value <= MAX_AMOUNT:
        raise _refuse(f"the amount {shown} is {'too large' if value >= least else 'too small'}", unit)
    return value


def format_amount(value: int, unit: TokenUnit) -> str:
    """Format an amount in `unit` with all its digits.

    Example: "1.5 CVT", or "1500000000000000000" in `SMALLEST`.
    """
    number = Decimal(value).scaleb(-unit.decimals, _EXACT)
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{text} {unit.symbol}".rstrip()


def require_plausible(value: int, unit: TokenUnit, *, balance: int) -> None:
    """Raise OperatorError("smallest_unit") if an amount is so far above the balance that its unit must be wrong.

    Such an amount was probably written in the token's smallest unit.
    """
    if unit == SMALLEST or value <= _SLIP * max(balance, 10**unit.decimals):
        return
    raise OperatorError(
        "smallest_unit",
        f"{format_amount(value, unit)} is more than a million times the balance of {format_amount(balance, unit)}",
        fix=f"Write the amount in {unit.symbol}, or add --raw if it is in the token's smallest unit",
    )


def _refuse(message: str, unit: TokenUnit) -> OperatorError:
    example = f"1.5 {unit.symbol}" if unit.decimals else "1500000000000000000"
    return OperatorError("bad_amount", message, fix=f"Write an amount such as {example}")


def _refuse_token(message: str) -> OperatorError:
    return OperatorError("odd_token", message, fix="Use --raw to write and read amounts in the token's smallest unit")
