"""Data types for mathematical answers: a number, list, tuple, interval, set, matrix, relation or word.

Main name: `Value`. All classes are plain data. The module `reading` creates them, and `equality` compares
them.
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
    """Expression in LaTeX, without percent sign and unit. "5 million" is 5*1000000."""
    exact: Fraction | None
    """Exact value of a plain number. None for any other expression."""
    places: int | None
    """Digits after the decimal point, minus the power of ten in scientific notation. None if it is not a decimal."""
    is_percent: bool
    """Whether a percent sign follows the expression."""
    unit: MeasureUnit | None
    """Unit after the expression. None if there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A list, tuple, interval or set of values. Example: [0, 1) has the brackets "[)"."""

    brackets: str
    """Brackets of the group: "{}" for a set, "()", "[]", "(]" or "[)" for a tuple or interval. Empty for a list."""
    items: "tuple[Value, ...]"
    """Values in the group, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination:
    """Several sets joined by one operator, as a union or a difference."""

    operator: str
    """Operator that joins the sets: "cup" for a union or "setminus" for a difference."""
    parts: "tuple[Value, ...]"
    """Sets that the operator joins, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """A name and its value, as x = 5, or constants that are equal, as 2^10 = 1024."""

    name: str
    """Name without spaces and braces. Empty if the first side is a constant."""
    value: "Value"
    """Value of the name."""
    latex: tuple[str, str]
    """Name and value in LaTeX, as the answer writes them. In a chain of equations the value is the last side."""
    steps: tuple[str, ...] = ()
    """Sides between name and value: x = 2 + 3 = 5 has the step 2 + 3. Each step must equal the value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Approximation:
    r"""A value with its decimal after an approximation sign. Example: 8\pi \approx 25.13."""

    value: "Value | None"
    """Value before the sign, which may be an approximation too. None if the text begins with the sign."""
    rounded: "Value"
    """Value after the sign."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Expressions joined by "=", "<", "<=", ">", ">=" or "!=". Example: 1 < x <= 2."""

    operators: tuple[str, ...]
    """Operators between the sides, one fewer than there are sides."""
    sides: tuple[str, ...]
    """Expressions that the operators join, in LaTeX and in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """A matrix whose rows have equal length."""

    rows: "tuple[tuple[Value, ...], ...]"
    """Entries, row by row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """A word or symbol that is compared as a string, such as "odd", "set:R" for the real numbers, or "204_5"."""

    text: str
    """Text in lower case, or the name of a symbol."""


Value = Scalar | Group | Combination | Assignment | Approximation | Chain | Matrix | Word
