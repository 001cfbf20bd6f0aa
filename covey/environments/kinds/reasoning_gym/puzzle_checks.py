"""Checks of answers to generators of reasoning-gym whose own scores are wrong. Main names: `CHECKS`, `VALUES`.

Each check takes an answer and the generator's item, and decides from the item's metadata. No check evaluates code.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from types import MappingProxyType

from covey.environments.kinds.reasoning_gym.reasoning_items import Entry

_NUMBER = re.compile(
    r"[+-]?(?=\.?[0-9])(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,50})?(?:\.[0-9]{1,50})?(?:[eE][+-]?[0-9]{1,3})?"
)
_RATIO = re.compile(r"([+-]?[0-9]{1,50})\s*/\s*([0-9]{1,50})")
_ARITHMETIC = re.compile(r"[0-9+\-*/() ]{1,300}")
_TERM = re.compile(r"([+-]?)(?=[0-9ij])([0-9]{1,50}(?:\.[0-9]{1,50})?)?([ij]?)")
_COMPLEX = re.compile(rf"{_TERM.pattern}(?:(?=[+-]){_TERM.pattern})?")
_MOVES = re.compile(r"[A-Z][+-][0-9](?:[\s,]+[A-Z][+-][0-9])*")
_DECIMALS = re.compile(r"[0-9.+\-*/() ]+")


def read_number(text: str) -> Fraction | None:
    """Return the value of a text that is one number or one ratio of integers, with or without a degree sign."""
    text = text.strip().removesuffix("\u00b0").strip()
    if any(character.isdigit() for character in text) and _NUMBER.fullmatch(text):
        return Fraction(text.replace(",", ""))
    ratio = _RATIO.fullmatch(text)
    return Fraction(int(ratio[1]), int(ratio[2])) if ratio and int(ratio[2]) else None


def compute(expression: str) -> tuple[Fraction, list[int]] | None:
    """Return the value of an expression of integers with + - * / and brackets, and the integers that it contains.

    The result is None if it is not such an expression, or divides by 0.
    """
    if not _ARITHMETIC.fullmatch(expression.strip()):
        return None
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        numbers = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        return _evaluate(tree.body), [number for number in numbers if isinstance(number, int)]
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr) -> Fraction:
    """Return the exact value of a syntax tree. Raises ValueError for any node but numbers, signs and + - * /."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _evaluate(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left), _evaluate(node.right)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return left / right
    raise ValueError(f"{type(node).__name__} is not arithmetic")


def _uses_numbers(answer: str, entry: Entry) -> bool:
    """Countdown and puzzle24: the expression has the target's value and uses each given number once."""
    computed = compute(answer)
    metadata = entry["metadata"]
    return computed is not None and (
        computed[0] == metadata.get("target", 24) and sorted(computed[1]) == sorted(metadata["numbers"])
    )


def _is_complex_number(answer: str, entry: Entry) -> bool:
    """complex_arithmetic: the answer has this real and this imaginary part. The package scores NaN as 1."""
    plain = re.sub(r"\s*([+-])\s*", r"\1", answer.strip())
    plain = plain[1:-1] if plain.startswith("(") and plain.endswith(")") else plain
    if not _COMPLEX.fullmatch(plain):
        return False
    parts = {"real": 0.0, "imaginary": 0.0}
    terms = [(bool(unit), f"{sign}{number or 1}") for sign, number, unit in _TERM.findall(plain)]
    for is_imaginary, number in terms:
        parts["imaginary" if is_imaginary else "real"] = float(number)
    is_single = 0 < len(terms) == len({is_imaginary for is_imaginary, _ in terms})
    return is_single and [*parts.values()] == [float(part) for part in entry["metadata"]["result"]]


def _is_coloring(answer: str, entry: Entry) -> bool:
    """graph_color: every vertex has one of the colors, and no edge joins two vertices of the same color."""
    puzzle = entry["metadata"]["puzzle"]
    try:
        pairs = json.loads(answer, object_pairs_hook=list)
        colors = dict(pairs)
        is_complete = [name for name, _ in pairs] == list(dict.fromkeys(colors)) and len(pairs) == len(colors)
        is_complete = is_complete and set(colors) == {str(vertex) for vertex in puzzle["vertices"]}
    except (ValueError, TypeError, RecursionError):
        return False
    return (
        is_complete
        and all(type(color) is int and color in puzzle["color_options"] for color in colors.values())
        and all(colors[str(first)] != colors[str(second)] for first, second in puzzle["edges"])
    )


def _is_way_out(answer: str, entry: Entry) -> bool:
    """rush_hour: every move is possible over its whole length, and the red car is at the exit after the last one.

    The package skips moves that are blocked, so that a list of all moves may solve a puzzle by chance.
    """
    from reasoning_gym.games.rush_hour import Board

    if not _MOVES.fullmatch(answer.strip()):
        return False
    board = Board(entry["metadata"]["board_config"])
    for move in re.split(r"[\s,]+", answer.strip()):
        car, steps = ord(move[0]) - ord("A"), int(move[1:])
        if car >= len(board._pieces):
            return False
        piece = board._pieces[car]
        target = piece.position + steps * piece.stride
        board.move(move[0], steps)
        if steps == 0 or piece.position != target:
            return False
    return bool(board.solved)


def _is_survo(answer: str, entry: Entry) -> bool:
    """survo: the given cells are kept, the empty ones hold the candidates, and all sums are right.

    The package accepts only one of the solutions.
    """
    metadata = entry["metadata"]
    puzzle: list[list[int]] = metadata["puzzle"]
    rows = [line.split() for line in answer.strip().splitlines() if line.strip()]
    if [len(row) for row in rows] != [len(row) for row in puzzle]:
        return False
    if not all(cell.isascii() and cell.isdigit() and len(cell) < 10 for row in rows for cell in row):
        return False
    grid = [[int(cell) for cell in row] for row in rows]
    pairs = [pair for given, row in zip(puzzle, grid, strict=True) for pair in zip(given, row, strict=True)]
    return (
        all(given in (0, cell) for given, cell in pairs)
        and sorted(cell for given, cell in pairs if given == 0) == sorted(metadata["candidate_numbers"])
        and all(sum(line[:-1]) == line[-1] for line in (*grid, *zip(*grid, strict=True)))
    )


def _list_probabilities(entry: Entry) -> Iterator[Fraction]:
    """coin_flip: the exact probability."""
    yield Fraction(entry["metadata"]["rational"]["numerator"], entry["metadata"]["rational"]["denominator"])


def _list_powers(entry: Entry) -> Iterator[Fraction]:
    """power_function: the power rounded to 3 significant digits, as the question asks."""
    for rounding in (ROUND_HALF_UP, ROUND_HALF_EVEN):
        yield Fraction(Context(prec=3, rounding=rounding).create_decimal(entry["answer"]))


def _list_results(entry: Entry) -> Iterator[Fraction]:
    """decimal_arithmetic: the exact result, rounded once. The package rounds after each operation."""
    expression = str(entry["question"]).splitlines()[-1].partition("=")[0].strip()
    if _DECIMALS.fullmatch(expression):
        result = _evaluate(ast.parse(expression, mode="eval").body)
        digits = len(Decimal(entry["answer"]).as_tuple().digits)
        context = Context(prec=digits, rounding=ROUND_HALF_UP)
        yield Fraction(context.divide(Decimal(result.numerator), Decimal(result.denominator)))


def _list_angles(entry: Entry) -> Iterator[Fraction]:
    """advanced_geometry: an angle rounded to 3 digits, as the question asks. The package's answer has 2 digits."""
    if entry["metadata"]["task_type"] == "angle_measure":
        yield Fraction(f"{entry['metadata']['angle_ABC_degrees']:.3f}")


CHECKS: Mapping[str, Callable[[str, Entry], bool]] = MappingProxyType(
    {
        "complex_arithmetic": _is_complex_number,
        "countdown": _uses_numbers,
        "graph_color": _is_coloring,
        "puzzle24": _uses_numbers,
        "rush_hour": _is_way_out,
        "survo": _is_survo,
    }
)
"""Checks by generator. They decide alone whether an answer that differs from the item's own answer is right."""
VALUES: Mapping[str, Callable[[Entry], Iterator[Fraction]]] = MappingProxyType(
    {
        "advanced_geometry": _list_angles,
        "coin_flip": _list_probabilities,
        "decimal_arithmetic": _list_results,
        "power_function": _list_powers,
    }
)
"""Functions that list numbers which are as right as the item's own answer, by generator."""
