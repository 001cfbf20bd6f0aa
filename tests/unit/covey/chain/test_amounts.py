from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.chain.amounts import (
    MAX_AMOUNT,
    SMALLEST,
    Amount,
    TokenUnit,
    clean_symbol,
    format_amount,
    parse_amount,
    read_unit,
    require_plausible,
)
from covey.errors import OperatorError, ProtocolError, TransientError

pytestmark = pytest.mark.unit

CVT = TokenUnit(18, "CVT")


@given(st.integers(0, MAX_AMOUNT), st.integers(0, 36), st.sampled_from(["", "CVT", "USD₮0", "tokens"]))
def test_format_then_parse__any_amount_in_any_unit__round_trips(value: int, decimals: int, symbol: str):
    unit = TokenUnit(decimals, symbol)
    text = format_amount(value, unit)
    assert parse_amount(text, unit, least=0) == value
    assert parse_amount(text.partition(" ")[0], unit, least=0) == value, "the symbol may be left out"
    number = text.partition(" ")[0]
    assert number == "0" or not number.startswith("00")
    assert "." not in number or number[-1] not in "0."


@given(st.decimals(0, 10**12, places=6))
def test_parse_amount__unit_of_six_decimals__multiplies_by_a_million(number: Decimal):
    assert parse_amount(f"{number:f}", TokenUnit(6, "USD"), least=0) == int(number * 10**6)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1.5", CVT, 1_500_000_000_000_000_000),
        (" 1.5 CVT ", CVT, 1_500_000_000_000_000_000),
        ("1.5CVT", CVT, 1_500_000_000_000_000_000),
        ("100", CVT, 10**20),
        ("0.000000000000000001", CVT, 1),
        ("1.500", TokenUnit(1, "X"), 15),
        ("1500000000000000000", SMALLEST, 1_500_000_000_000_000_000),
        (str(MAX_AMOUNT), SMALLEST, MAX_AMOUNT),
    ],
)
def test_parse_amount__by_hand(text: str, unit: TokenUnit, value: int):
    assert parse_amount(text, unit) == value


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        ("", CVT, " is not a valid amount"),
        ("1,5", CVT, "1,5 is not a valid amount. Write an amount such as 1.5 CVT"),
        ("1e18", CVT, "1e18 is not an amount in CVT"),
        ("-1", CVT, "-1 is not a valid amount"),
        ("٣", CVT, "٣ is not a valid amount"),
        ("1" * 79, CVT, "is not a valid amount"),
        ("1\x1b[31m", CVT, r"'1\x1b[31m' is not"),
        ("1.5 USD", CVT, "1.5 USD is not an amount in CVT"),
        (
            "1.5 CVT",
            SMALLEST,
            "1.5 CVT is not an amount in the smallest unit. Write an amount such as 1500000000000000000",
        ),
        ("1.5", SMALLEST, "1.5 has too many decimal places: the smallest unit has no decimal places"),
        ("0.0000000000000000001", CVT, "has too many decimal places: CVT has 18 decimal places"),
        ("0", CVT, "0 is too small"),
        ("0.0", SMALLEST, "0.0 is too small"),
        (str(MAX_AMOUNT + 1), SMALLEST, "is too large"),
        (str(MAX_AMOUNT), CVT, "is too large"),
    ],
)
def test_parse_amount__invalid__is_refused_with_an_example(text: str, unit: TokenUnit, message: str):
    with pytest.raises(OperatorError) as caught:
        parse_amount(text, unit)
    assert caught.value.code == "bad_amount"
    assert message in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "balance", "is_plausible"),
    [
        (10**20, 10**20, True),
        (10**6 * 10**20, 10**20, True),
        (10**6 * 10**20 + 1, 10**20, False),
        (15 * 10**17, 0, True),  # The contract will refuse it for lack of balance.
        (10**18 * 10**18, 0, False),
    ],
)
def test_require_plausible__a_million_times_the_balance__is_the_limit(value: int, balance: int, is_plausible: bool):
    require_plausible(value, SMALLEST, balance=balance)
    if is_plausible:
        require_plausible(value, CVT, balance=balance)
        return
    with pytest.raises(OperatorError, match=r"smallest_unit: .* CVT is more than a million .*add --raw if") as caught:
        require_plausible(value, CVT, balance=balance)
    assert format_amount(balance, CVT) in caught.value.message


class Token:
    """Fake token that returns given values, or raises them if they are errors."""

    address = "0xT"

    def __init__(self, decimals: int | Exception, symbol: str | Exception) -> None:
        self._decimals, self._symbol = decimals, symbol

    def decimals(self) -> int:
        return self._say(self._decimals)

    def symbol(self) -> str:
        return self._say(self._symbol)

    @staticmethod
    def _say(value):
        if isinstance(value, Exception):
            raise value
        return value


REVERTED, EMPTY = ProtocolError("reverted", "no reason"), TransientError("no_contract", "odd data")


@pytest.mark.parametrize(
    ("decimals", "symbol", "unit"),
    [
        (18, "CVT", CVT),
        (0, "P", TokenUnit(0, "P")),
        (36, "\x1b[31mCVT\u202e \n", TokenUnit(36, "[31mCVT")),
        (6, "U" * 10**6, TokenUnit(6, "U" * 16)),
        (6, " \x00 ", TokenUnit(6, "tokens")),
        (6, "000", TokenUnit(6, "tokens")),
        (6, ".5", TokenUnit(6, "tokens")),
        (6, ",5", TokenUnit(6, "tokens")),
        (6, REVERTED, TokenUnit(6, "tokens")),
        (6, EMPTY, TokenUnit(6, "tokens")),
    ],
)
def test_read_unit__values_of_a_token__are_bounded_and_cleaned(decimals, symbol, unit):
    assert read_unit(Token(decimals, symbol)) == unit


@pytest.mark.parametrize("decimals", [37, 255, REVERTED, EMPTY])
def test_read_unit__odd_decimals__are_refused(decimals):
    with pytest.raises(OperatorError, match=r"odd_token: the token 0xT .*Use --raw"):
        read_unit(Token(decimals, "CVT"))


@pytest.mark.parametrize("field", ["decimals", "symbol"])
def test_read_unit__chain_is_unreachable__is_not_blamed_on_the_token(field):
    unreachable = TransientError("chain_unreachable", "no answer")
    with pytest.raises(TransientError, match="chain_unreachable"):
        read_unit(Token(**({"decimals": 18, "symbol": "CVT"} | {field: unreachable})))


@given(st.text(max_size=40))
def test_clean_symbol__any_text__parses_after_a_number(text: str):
    symbol = clean_symbol(text)
    assert symbol.isprintable()
    assert 0 < len(symbol) <= 16
    assert (
        parse_amount(f"1.5 {symbol}", TokenUnit(1, symbol)) == parse_amount(f"1.5{symbol}", TokenUnit(1, symbol)) == 15
    )


def test_amount__is_printed_in_its_unit():
    assert str(Amount(15, TokenUnit(1, "CVT"))) == "1.5 CVT"
    assert str(Amount(15, SMALLEST)) == "15"
