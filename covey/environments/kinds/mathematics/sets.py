"""Sets of real numbers in every notation that answers use: brackets, unions, inequalities in one variable.

Main name: `read_set`. sympy brings unions to one normal form with exact end points.
"""

import re
from dataclasses import dataclass

import sympy

from covey.environments.kinds.mathematics import scalars
from covey.environments.kinds.mathematics.reading import read_value
from covey.environments.kinds.mathematics.values import Assignment, Chain, Combination, Group, Scalar, Value, Word

_VARIABLE = re.compile(r"[a-zA-Z]|[a-z]\([a-z]\)|\\(?:theta|alpha|lambda)|[a-z]_\{?[0-9a-z]\}?")
_NAMED = {"set:R": sympy.S.Reals, "set:emptyset": sympy.S.EmptySet}


@dataclass(frozen=True, kw_only=True, slots=True)
class RealSet:
    """A set of real numbers, and the name of the variable that ranges over it."""

    members: sympy.Set
    """The set itself, as a sympy set."""
    variable: str
    """Name of the variable. Empty if none is named."""

    def is_same(self, other: "RealSet") -> bool:
        """Return whether two sets have the same members. Sets of two different named variables are not the same."""
        if self.variable and other.variable and self.variable != other.variable:
            return False
        try:
            return bool(
                self.members == other.members or sympy.SymmetricDifference(self.members, other.members).is_empty
            )
        except scalars.UNREADABLE:
            return False


def read_set(value: Value) -> RealSet | None:
    """Return the set that a value describes, or None if it is not a set of real numbers with constant end points."""
    try:
        return _read(value)
    except scalars.UNREADABLE:
        return None


def _read(value: Value) -> RealSet | None:
    if isinstance(value, Word):
        members = _NAMED.get(value.text)
        return None if members is None else RealSet(members=members, variable="")
    if isinstance(value, Chain):
        return _read_inequality(value)
    if isinstance(value, Combination):
        return _combine(value.operator, value.parts)
    if isinstance(value, Group) and value.brackets in ("{}", ""):
        if value.brackets == "" and all(isinstance(item, Chain) for item in value.items):
            return _combine("cup", value.items)
        points = [_read_end(item) for item in value.items]
        if any(point is None or not point.is_finite for point in points):
            return None
        return RealSet(members=sympy.FiniteSet(*points), variable="")
    if isinstance(value, Group) and len(value.items) == 2:
        ends = [_read_end(item) for item in value.items]
        return _build_interval(ends[0], ends[1], value.brackets[0] == "(", value.brackets[1] == ")", "")
    if isinstance(value, Scalar | Assignment):
        return None
    return None


def _combine(operator: str, parts: tuple[Value, ...]) -> RealSet | None:
    operands = [_read(part) for part in parts]
    sets = [operand for operand in operands if operand is not None]
    variables = {real_set.variable for real_set in sets} - {""}
    if len(sets) != len(operands) or len(variables) > 1:
        return None
    members = sets[0].members
    for real_set in sets[1:]:
        members = members - real_set.members if operator == "setminus" else members | real_set.members
    return RealSet(members=members, variable=variables.pop() if variables else "")


def _read_inequality(chain: Chain) -> RealSet | None:
    """Read x < b, a < x, a < x <= b, x != a or one of their reversed forms, where x is a variable.

    Return None for any other chain of relations.
    """
    operators, sides = chain.operators, chain.sides
    if operators[0] in (">", ">="):
        flipped = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "=": "=", "!=": "!="}
        operators, sides = tuple(flipped[each] for each in reversed(operators)), tuple(reversed(sides))
    is_variable = [_VARIABLE.fullmatch(side) is not None for side in sides]
    if sum(is_variable) != 1:
        return None
    name = sides[is_variable.index(True)]
    ends = [None if is_name else _read_end(read_value(side)) for side, is_name in zip(sides, is_variable, strict=True)]
    if operators == ("!=",):
        point = ends[1] if is_variable[0] else ends[0]
        if point is None or not point.is_finite:
            return None
        return RealSet(members=sympy.S.Reals - sympy.FiniteSet(point), variable=name)
    if not set(operators) <= {"<", "<="}:
        return None
    if len(operators) == 1:
        if is_variable[0]:
            return _build_interval(-sympy.oo, ends[1], True, operators[0] == "<", name)
        return _build_interval(ends[0], sympy.oo, operators[0] == "<", True, name)
    if len(operators) == 2 and is_variable[1]:
        return _build_interval(ends[0], ends[2], operators[0] == "<", operators[1] == "<", name)
    return None


def _read_end(value: Value | None) -> sympy.Expr | None:
    """Return an end point as a real constant or infinity, or None if the value is neither."""
    if not isinstance(value, Scalar) or value.unit is not None or value.is_percent:
        return None
    expression = scalars.read_expression(value)
    return (
        expression if expression is not None and expression.is_extended_real and not expression.free_symbols else None
    )


def _build_interval(
    start: sympy.Expr | None, end: sympy.Expr | None, is_left_open: bool, is_right_open: bool, variable: str
) -> RealSet | None:
    if start is None or end is None or not start < end:
        return None
    return RealSet(members=sympy.Interval(start, end, is_left_open, is_right_open), variable=variable)
