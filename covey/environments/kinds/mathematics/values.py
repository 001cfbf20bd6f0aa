"""What an answer in mathematics may be: a number, a list, a tuple or interval, a set, a matrix, a relation, a word.

Main name: `Value`.  All classes are plain data; `reading` makes them and `equality` compares them.
"""

from dataclasses import dataclass
from fractions import Fraction

from covey.environments.kinds.mathematics.units import MeasureUnit


@dataclass(frozen=True, kw_only=True, slots=True)
class Scalar:
    """A number or an expression.

    Example: 12.50% is Scalar(latex="12.50", exact=Fraction(25, 2), places=2, is_percent=True, unit=None).
    """

    latex: str
    """The expression without percent sign and unit."""
    exact: Fraction | None
    """Its value if it is a plain number."""
    places: int | None
    """Digits after the decimal point, less the power of ten in scientific notation; None for other than decimals."""
    is_percent: bool
    unit: MeasureUnit | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Several values.  Example: [0, 1) has the brackets "[)"."""

    brackets: str
    """"" for a list, "{}" for a set, and "()", "[]", "(]" or "[)" for tuples and intervals."""
    items: "tuple[Value, ...]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination:
    r"""Sets joined by `operator`, "cup" or "setminus"."""

    operator: str
    parts: "tuple[Value, ...]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """A name and its value.  Example: x = 5."""

    name: str
    value: "Value"
    latex: tuple[str, str]
    """Both sides as they stand, the last one of several."""
    steps: tuple[str, ...] = ()
    """What stands between: x = 2 + 3 = 5 has the step 2 + 3, which must equal the value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Expressions joined by "=", "<", "<=", ">", ">=" or "!=".  Example: 1 < x <= 2."""

    operators: tuple[str, ...]
    sides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """Rows of equal length."""

    rows: "tuple[tuple[Value, ...], ...]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """A text or a symbol that is compared as a string, for example "odd", "R" for the real numbers, or "204_5"."""

    text: str


Value = Scalar | Group | Combination | Assignment | Chain | Matrix | Word
