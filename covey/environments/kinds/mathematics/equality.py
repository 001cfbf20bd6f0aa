"""Compares an answer with the truth (a reference answer) by structure, using exact numbers where possible.

Main name: `are_same`. The first argument is always the truth. An answer may add what the truth omits, such as
a variable name ("x = 5" for 5) or a unit. The reverse is not allowed where it would let a guess count.
"""

import re
from fractions import Fraction

import sympy

from covey.environments.kinds.mathematics import scalars
from covey.environments.kinds.mathematics.reading import read_sum, read_value
from covey.environments.kinds.mathematics.sets import read_set
from covey.environments.kinds.mathematics.units import CELSIUS, DEGREE, FAHRENHEIT, RADIAN, MeasureUnit
from covey.environments.kinds.mathematics.values import (
    Approximation,
    Assignment,
    Chain,
    Combination,
    Group,
    Matrix,
    Scalar,
    Value,
    Word,
)

SIGNIFICANT_DIGITS = 6
"""Minimum number of digits that a decimal needs to be accepted as an approximation of a number that is not a
decimal.
"""

_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


def are_same(truth: Value, answer: Value) -> bool:
    """Return whether an answer is mathematically the same as the truth. The truth decides the required form."""
    if isinstance(answer, Chain) and not isinstance(truth, Chain | Assignment):
        answer = read_sum(answer) or answer
    if isinstance(answer, Assignment) and not _is_consistent(answer):
        return False
    if isinstance(truth, Approximation):
        return any(value is not None and are_same(value, answer) for value in (truth.value, truth.rounded))
    if isinstance(answer, Approximation):
        if answer.value is None:
            return are_same(truth, answer.rounded)
        if not _is_near(answer.value, answer.rounded):
            return False
        return are_same(truth, answer.value) or (_is_decimal(answer.rounded) and are_same(truth, answer.rounded))
    if isinstance(truth, Assignment) and isinstance(answer, Assignment) and truth.name != answer.name:
        return _are_same_relations(_equate(truth), _equate(answer))
    if isinstance(truth, Chain) or isinstance(answer, Chain):
        return _are_same_chains(truth, answer)
    left, right = (_unwrap(side.value if isinstance(side, Assignment) else side) for side in (truth, answer))
    return _are_same_values(truth, answer) if left is truth and right is answer else are_same(left, right)


def _are_same_values(truth: Value, answer: Value) -> bool:
    if isinstance(truth, Scalar) and isinstance(answer, Scalar):
        return are_same_scalars(truth, answer)
    if isinstance(truth, Word) and isinstance(answer, Word) and truth.text == answer.text:
        return True
    if isinstance(truth, Matrix) and isinstance(answer, Matrix):
        return len(truth.rows) == len(answer.rows) and all(map(_are_same_in_order, truth.rows, answer.rows))
    if isinstance(truth, Matrix) or isinstance(answer, Matrix):
        return _is_same_vector(truth, answer)
    if isinstance(truth, Group) and isinstance(answer, Group) and _are_same_groups(truth, answer):
        return True
    return _are_same_sets(truth, answer)


def _are_same_chains(truth: Value, answer: Value) -> bool:
    left, right = _as_chain(truth), _as_chain(answer)
    if left is not None and right is not None and _are_same_relations(left, right):
        return True
    return _are_same_sets(truth, answer)


def _is_consistent(answer: Assignment) -> bool:
    """Return whether all sides of an answer's equation have the same value: "x = 2 = 3" gives two answers.

    A side with variables may define a number, as in S = ab/2 = 6. A side that repeats the number gives no information.
    """
    steps = (*answer.steps, answer.latex[0]) if not answer.name else answer.steps
    value = _find_exact(answer.value)
    return all(
        (value is not None and _is_definition(step, value)) or _is_same_side(answer.latex[1], step) for step in steps
    )


def _is_definition(step: str, value: Value) -> bool:
    formula, number = scalars.read_expression(read_value(step)), scalars.read_expression(value)
    return formula is not None and number is not None and bool(formula.free_symbols) and not number.free_symbols


def _is_decimal(rounded: Value) -> bool:
    """Return whether the number after "exact value, approximation sign" may count as the answer itself.

    It must have a fractional part and three digits or more. 24.6 \\approx 25 does not claim 25.
    """
    if not isinstance(rounded, Scalar) or rounded.exact is None or rounded.exact.denominator == 1 or not rounded.places:
        return False
    return abs(rounded.exact) >= 100 * Fraction(10) ** -rounded.places


def _find_exact(value: Value | None) -> Value | None:
    """Return the value before the first approximation sign."""
    while isinstance(value, Approximation):
        value = value.value
    return value


def _is_near(value: Value, rounded: Value) -> bool:
    """Return whether what follows an approximation sign is the rounded form of what stands before the sign."""
    exact = _find_exact(value)
    if isinstance(exact, Chain):
        exact = read_value(exact.sides[-1])
    exact = exact.value if isinstance(exact, Assignment) else exact
    if exact is None or isinstance(exact, Scalar) != isinstance(rounded, Scalar):
        return False
    if isinstance(exact, Scalar) and isinstance(rounded, Scalar):
        return are_same_scalars(exact, rounded) or _is_near_scalar(exact, rounded)
    if isinstance(exact, Group) and isinstance(rounded, Group):
        return len(exact.items) == len(rounded.items) and all(map(_is_near, exact.items, rounded.items))
    return are_same(exact, rounded)


def _is_near_scalar(exact: Scalar, rounded: Scalar) -> bool:
    left, right = scalars.read_expression(exact), scalars.read_expression(rounded)
    if left is None or right is None:
        return False
    if exact.unit and rounded.unit:
        if not _have_same_dimension(exact.unit, rounded.unit):
            return False
        size = exact.unit.factor / rounded.unit.factor
        left *= sympy.Rational(size.numerator, size.denominator)
    ratio = scalars.find_ratio(left, right)
    if ratio is not None:
        return bool(sympy.Abs(ratio - 1) < sympy.Rational(1, 1000))
    value, number = scalars.evaluate_real(left), scalars.evaluate_real(right)
    if value is None or number is None:
        return False
    values = [value, value * 100] if rounded.is_percent and not exact.is_percent else [value]
    return any(abs(each - number) <= _find_tolerance(each, rounded) for each in values)


def _find_tolerance(value: Fraction, rounded: Scalar) -> Fraction:
    """Return how far a number may lie from the value that it rounds.

    A decimal may be cut off. The zeros at the end of an integer may come from rounding, up to a tenth of the value.
    """
    if rounded.places and rounded.places > 0:
        return Fraction(10) ** -rounded.places
    if rounded.exact is not None and rounded.exact.denominator == 1:
        digits = str(abs(rounded.exact.numerator))
        zeros = len(digits) - len(digits.rstrip("0")) if rounded.exact else 0
        return min(Fraction(10**zeros, 2), max(Fraction(1, 2), abs(value) / 10))
    return abs(value) / 1000


def _unwrap(value: Value) -> Value:
    """Unwrap a set with a single number, tuple or word, because the solution set {5} means the solution 5."""
    if not isinstance(value, Group) or value.brackets != "{}" or len(value.items) != 1:
        return value
    item = value.items[0]
    is_set = isinstance(item, Combination | Chain) or (isinstance(item, Word) and item.text.startswith("set:"))
    return value if is_set or (isinstance(item, Group) and item.brackets != "()") else item


def are_same_scalars(truth: Scalar, answer: Scalar) -> bool:
    """Return whether two numbers or expressions are the same, taking percent signs and units into account.

    If only one side has a unit, it is ignored. If only one side has a percent sign, 50% matches both 50 and 0.5.
    """
    if (truth.unit and answer.is_percent) or (answer.unit and truth.is_percent):
        return False
    if _is_angle(truth) and not _is_angle(answer) and _is_radian(answer):
        return _is_same_angle(truth, answer)
    if _is_angle(answer) and not _is_angle(truth) and _is_radian(truth):
        return _is_same_angle(answer, truth)
    if truth.unit and answer.unit and not _have_same_dimension(truth.unit, answer.unit):
        return False
    factor = answer.unit.factor / truth.unit.factor if truth.unit and answer.unit else Fraction(1)
    factors = [factor]
    if truth.is_percent != answer.is_percent:
        factors.append(Fraction(1, 100) if answer.is_percent else Fraction(100))
    return any(_are_same_times(truth, answer, factor) for factor in factors)


def _are_same_times(truth: Scalar, answer: Scalar, factor: Fraction) -> bool:
    """Return whether the truth is `factor` times the answer."""
    if factor == 1 and truth.latex == answer.latex:
        return True
    if truth.exact is not None and answer.exact is not None:
        if truth.exact == answer.exact * factor:
            return True
        if factor != 1:
            return False
        return _is_rounded(truth.exact, answer) or _is_rounded(answer.exact, truth)
    left, right = scalars.read_expression(truth), scalars.read_expression(answer)
    if left is None or right is None:
        return False
    right *= sympy.Rational(factor.numerator, factor.denominator)
    if scalars.are_equal(left, right):
        return True
    if factor != 1 or left.free_symbols or right.free_symbols:
        return False
    number, other = (answer, left) if answer.places is not None else (truth, right)
    value = scalars.evaluate_real(other)
    return value is not None and _is_rounded(value, number)


def _is_rounded(value: Fraction, decimal: Scalar) -> bool:
    """Return whether a decimal is the rounded form of a value that has no short decimal form itself.

    The decimal must have at least `SIGNIFICANT_DIGITS` digits.
    """
    if decimal.places is None or decimal.places <= 0 or decimal.exact is None:
        return False
    step = Fraction(1, 10**decimal.places)
    digits = len(str(abs(int(decimal.exact / step))))
    if digits < SIGNIFICANT_DIGITS or _has_few_digits(value):
        return False
    return abs(decimal.exact - value) <= step / 2


def _has_few_digits(value: Fraction) -> bool:
    """Return whether a value has an exact decimal form that is short enough to write out."""
    return value.denominator.bit_length() < 64 and 10**20 % value.denominator == 0


def _have_same_dimension(truth: MeasureUnit, answer: MeasureUnit) -> bool:
    """Return whether two units measure the same. A degree sign may be short for a degree of a temperature."""
    dimensions = {truth.dimension, answer.dimension}
    return len(dimensions) == 1 or dimensions in ({DEGREE, CELSIUS}, {DEGREE, FAHRENHEIT})


def _is_angle(scalar: Scalar) -> bool:
    return scalar.unit is not None and scalar.unit.dimension == DEGREE


def _is_radian(scalar: Scalar) -> bool:
    if scalar.unit is None:
        return r"\pi" in scalar.latex
    return scalar.unit.dimension == RADIAN


def _is_same_angle(degrees: Scalar, radians: Scalar) -> bool:
    left, right = scalars.read_expression(degrees), scalars.read_expression(radians)
    size = degrees.unit.factor if degrees.unit else Fraction(1)
    factor = sympy.pi * sympy.Rational(size.numerator, size.denominator) / 180
    return left is not None and right is not None and scalars.are_equal(left * factor, right)


def _are_same_in_order(truths: tuple[Value, ...], answers: tuple[Value, ...]) -> bool:
    return len(truths) == len(answers) and all(are_same(*pair) for pair in zip(truths, answers, strict=True))


def _are_same_in_any_order(truths: tuple[Value, ...], answers: tuple[Value, ...]) -> bool:
    if len(truths) != len(answers):
        return False
    rest = list(answers)
    for truth in truths:
        index = next((index for index, answer in enumerate(rest) if are_same(truth, answer)), None)
        if index is None:
            return False
        rest.pop(index)
    return True


def _are_same_groups(truth: Group, answer: Group) -> bool:
    kinds = {truth.brackets, answer.brackets}
    if not (len(kinds) == 1 or kinds <= {"", "{}"} or kinds == {"", "()"}):
        return False
    names, others = _list_names(truth.items), _list_names(answer.items)
    if len({*names}) > 1 or len({*others}) > 1:
        # Values of several unknowns may have any order only if both sides name them. Roots such as x_1 and x_2 are
        # solutions of one unknown.
        is_one_unknown = _are_roots(names or others) and not (names and others) and answer.brackets != "()"
        if {*names} == {*others} or is_one_unknown:
            return _are_same_in_any_order(truth.items, answer.items)
        return (bool(names) or _are_in_order(others)) and _are_same_in_order(truth.items, answer.items)
    if kinds == {"{}"}:
        return _are_same_in_any_order(_drop_repeated(truth.items), _drop_repeated(answer.items))
    if kinds <= {"", "{}"}:
        return _are_same_in_any_order(truth.items, answer.items)
    return _are_same_in_order(truth.items, answer.items)


def _list_names(items: tuple[Value, ...]) -> list[str]:
    return [item.name for item in items if isinstance(item, Assignment)]


def _are_roots(names: list[str]) -> bool:
    """Return whether names are one letter with different indexes, such as x_1 and x_2."""
    return all("_" in name for name in names) and len({name.partition("_")[0] for name in names}) == 1


def _are_in_order(names: list[str]) -> bool:
    """Return whether names are in the order of the alphabet and of their indexes: x, y or x_9, x_10."""
    keys = [re.split(r"([0-9]+)", name.strip("\\").casefold()) for name in names]
    keys = [[part.zfill(9) if part.isdigit() else part for part in key] for key in keys]
    return keys == sorted(keys)


def _drop_repeated(items: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the elements of a set without repetitions."""
    kept: list[Value] = []
    for item in items:
        if not any(are_same(each, item) for each in kept):
            kept.append(item)
    return tuple(kept)


def _is_same_vector(truth: Value, answer: Value) -> bool:
    """Return whether two values are the same vector.

    A matrix with one row or one column counts as the tuple of its entries.
    """
    lists = []
    for value in (truth, answer):
        if isinstance(value, Matrix) and (len(value.rows) == 1 or len(value.rows[0]) == 1):
            lists.append(tuple(item for row in value.rows for item in row))
        elif isinstance(value, Group) and value.brackets == "()":
            lists.append(value.items)
        else:
            return False
    return _are_in_order(_list_names(lists[1])) and _are_same_in_order(*lists)


def _as_chain(value: Value) -> Chain | None:
    if isinstance(value, Assignment):
        return _equate(value)
    return value if isinstance(value, Chain) else None


def _equate(value: Assignment) -> Chain:
    return Chain(operators=("=",), sides=value.latex)


def _are_same_relations(truth: Chain, answer: Chain) -> bool:
    """Return whether two relations hold for the same values of their variables.

    For relations with one operator, left side minus right side is computed for both. The two differences must
    have a constant ratio. If the ratio is negative, the inequality signs must be opposite.
    """
    if len(truth.operators) != len(answer.operators):
        return False
    if len(truth.operators) > 1:
        return any(
            truth.operators == operators and all(map(_is_same_side, truth.sides, sides))
            for operators, sides in ((answer.operators, answer.sides), _flip(answer))
        )
    differences = [_subtract(*chain.sides) for chain in (truth, answer)]
    if differences[0] is None or differences[1] is None:
        return False
    ratio = scalars.find_ratio(differences[0], differences[1])
    if ratio is None:
        return False
    operator = answer.operators[0]
    if operator in ("=", "!="):
        return truth.operators[0] == operator
    return truth.operators[0] == (operator if ratio > 0 else _FLIPPED[operator])


def _flip(chain: Chain) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(_FLIPPED.get(each, each) for each in reversed(chain.operators)), tuple(reversed(chain.sides))


def _is_same_side(truth: str, answer: str) -> bool:
    left, right = read_value(truth), read_value(answer)
    return left is not None and right is not None and are_same(left, right)


def _subtract(left: str, right: str) -> sympy.Expr | None:
    first, second = scalars.parse_expression(left), scalars.parse_expression(right)
    return None if first is None or second is None else first - second


def _are_same_sets(truth: Value, answer: Value) -> bool:
    """Return whether both values are the same set of real numbers.

    The result is False unless one of them is a union, difference, relation, list of relations, or word.
    """
    if not any(isinstance(value, Combination | Chain | Word) or _is_list_of_chains(value) for value in (truth, answer)):
        return False
    left, right = read_set(truth), read_set(answer)
    return left is not None and right is not None and left.is_same(right)


def _is_list_of_chains(value: Value) -> bool:
    return isinstance(value, Group) and value.brackets == "" and all(isinstance(item, Chain) for item in value.items)
