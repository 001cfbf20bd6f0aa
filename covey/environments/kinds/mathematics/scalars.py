"""Mathematical expressions without relations or lists: parsed by math-verify, compared exactly where possible.

Main names: `parse_expression`, `are_equal`, `find_ratio`. Expressions that are slow to evaluate are rejected
first: `_evaluate` rebuilds the unevaluated tree from its leaves, and stops at the first number or power that
is too large. math-verify's own timeouts use a signal and are switched off, because the grading process has
its own limit.
"""

import functools
import logging
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import TracebackType

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from math_verify import verify
from sympy.core.function import AppliedUndef

from covey.environments.kinds.mathematics.numerals import read_number
from covey.environments.kinds.mathematics.values import Scalar, Value

MAX_LEAF = 400
"""Maximum length of an expression to parse, in characters."""
MAX_NODES = 400
"""Maximum number of nodes in a parsed expression."""
MAX_POWER = 16
"""Maximum exponent of a compound expression such as a sum. Symbols may have exponents up to `MAX_DIGITS`."""
MAX_DIGITS = 1_000
"""Maximum number of decimal digits of a number, and maximum absolute value of an exponent."""
MAX_FACTORIAL = 200
"""Largest number whose factorial is computed."""
POINTS = 5
"""Number of points at which two expressions with variables are evaluated before they are compared
symbolically.
"""
PRECISION = 60
"""Number of significant digits to which constants are evaluated."""
AGREEMENT = 50
"""Number of significant digits in which two constants must agree to count as equal."""

logging.getLogger("math_verify").addHandler(logging.NullHandler())
logging.getLogger("math_verify").propagate = False

# Exceptions that sympy raises on expressions that it cannot handle. MemoryError is not among them, because the sandbox
# reports it as a limit.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, NotImplementedError, RecursionError, TypeError, ValueError)

_CONVERSION = ConversionConfig(lowercase_symbols=False)
_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot", "arcsec", "arccsc", "sinh",
     "cosh", "tanh", "arsinh", "arcosh", "artanh", "log", "ln", "exp"}
)  # fmt: skip
_PLAIN = _FUNCTIONS | {"pi", "infty", "theta", "alpha", "beta", "gamma", "lambda", "phi", "omega"}
_COMMANDS = _PLAIN | {
    "bar", "hat", "tilde", "vec", "dot", "ddot", "mathit", "frac", "sqrt", "binom", "cdot", "times", "div", "varphi",
    "mu", "sigma", "delta", "rho", "tau", "epsilon", "varepsilon", "lfloor", "rfloor", "lceil", "rceil", "zeta", "eta",
    "kappa", "nu", "xi", "psi", "chi", "Delta", "Omega",
}  # fmt: skip
_ALLOWED = re.compile(r"[0-9A-Za-z+\-*/^_(){}.!|\\\[\] ]+")
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_MARKED = re.compile(r"(\\(?:bar|hat|tilde|vec|dot|ddot) *\{[^{}]*\})|(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_PREFIX = re.compile("|".join(sorted(_PLAIN, key=len, reverse=True)))
_NAMES = "|".join(sorted(_FUNCTIONS, key=len, reverse=True))
_INDEXED = rf"\\(?:{_NAMES})(?![a-zA-Z]) ?(?:[_^] ?(?:\{{(?:[^{{}}]|\{{[^{{}}]*\}}){{1,40}}\}}|[0-9a-z]) ?)"
_ARGUMENT = re.compile(
    rf"({_INDEXED}{{0,2}})"
    r"((?:[0-9.a-zA-Z ]|\\(?:pi|theta|alpha|beta|phi)(?![a-zA-Z])|\\frac\{[^{}]*\}\{[^{}]*\}|\\sqrt\{[^{}]*\}){1,40}?)"
    r" ?(?=\\cdot|\\times|\*)"
)
r"""Pattern of a function whose argument ends at a sign of multiplication. The parser would read on: \ln 2 \cdot 3."""
_BASE_OR_POWER = re.compile(rf"{_INDEXED}{{1,2}}")
"""Pattern of a function with a base or a power, which a number may follow."""
_REPEATING = re.compile(r"[0-9]+\.[0-9]*\\bar *\{[0-9]+\}")
_VECTOR = re.compile(r"\\vec *\{ *([a-zA-Z]) *\}")
_CAPITAL_I = re.compile(r"(?<![a-zA-Z\\{])I(?![a-zA-Z])")
_INTEGERS = re.compile(
    r"(?<![a-zA-Z])(?:\\(?=gcd|max|min)|(\\text *\{ *))?(gcd|GCD|lcm|LCM|max|min)"
    r" *(?(1)\} *)(?:\(|\\\{)([0-9,\- ]+)(?:\)|\\\})"
)
_COMBINATIONS = re.compile(r"(?<![a-zA-Z\\])C *_ *\{? *([0-9]{1,3}) *\}? *\^ *\{? *([0-9]{1,3}) *\}?")
_POWER = re.compile(r"\^\s*(-?[0-9]+(?:\.[0-9]+)?|\([^()]*\)|-[a-z])")
_BINOMIAL = re.compile(r"\\binom\{(?:[0-9]{1,3}|[0-9+\-]{0,4}[a-z][0-9+\-]{0,4})\}\{[0-9]{1,3}\}")
_DEGREES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*\^\s*\{?\s*\\circ\s*\}?")
_LETTER = re.compile(r"\\text\s*\{\s*([a-zA-Z])\s*\}")
_UNCLEAR = re.compile(
    r"[0-9] +[0-9]|!\s*!|\)\s*!|(?:[+\-]\s*){4}"
    r"|\^\s*(?:[0-9a-zA-Z]+|\{[^{}]*\}|\\[a-zA-Z]+)\s*\^"
)
"""Pattern of expressions that are ambiguous, or that the parser misreads or parses slowly: "1 2", "5!!",
"x^y^z".
"""
_NODES = (
    sympy.Add, sympy.Mul, sympy.Pow, sympy.exp, sympy.log, sympy.sin, sympy.cos, sympy.tan, sympy.cot, sympy.sec,
    sympy.csc, sympy.asin, sympy.acos, sympy.atan, sympy.acot, sympy.asec, sympy.acsc, sympy.sinh, sympy.cosh,
    sympy.tanh, sympy.asinh, sympy.acosh, sympy.atanh, sympy.Abs, sympy.factorial, sympy.binomial, sympy.floor,
    sympy.ceiling, AppliedUndef,
)  # fmt: skip
_ATOMS = (sympy.Symbol, sympy.Number, sympy.NumberSymbol, sympy.core.numbers.ImaginaryUnit)


class _ParserErrors:
    """Ends a block at any error of the parser, which raises Exception itself for what it cannot read."""

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Suppress errors other than MemoryError, which the sandbox reports as a limit."""
        return kind is not None and issubclass(kind, Exception) and not issubclass(kind, MemoryError)


@functools.lru_cache(maxsize=256)
def parse_expression(latex: str) -> sympy.Expr | None:
    """Parse and evaluate an expression in normal form. Return None if it is not one or is too large.

    Variables are real, and the letter i is the imaginary unit. Decimals become exact fractions.
    """
    latex = _spell(latex)
    if (
        not 0 < len(latex) <= MAX_LEAF
        or not _ALLOWED.fullmatch(latex)
        or not _COMMANDS.issuperset(_COMMAND.findall(latex))
        or len(_BINOMIAL.findall(latex)) != latex.count(r"\binom")
        or _UNCLEAR.search(_BASE_OR_POWER.sub("", latex))
    ):
        return None
    parsed = None
    with _ParserErrors():
        parsed = latex2sympy(latex, is_real=True, normalization_config=None, conversion_config=_CONVERSION)
    if not isinstance(parsed, sympy.Expr):
        return None
    try:
        expression = _evaluate(parsed, [MAX_NODES])
        return None if expression is None or expression.has(sympy.nan, sympy.zoo) else expression
    except UNREADABLE:
        return None


def read_expression(value: Value | None) -> sympy.Expr | None:
    """Return the expression of a number or expression without its unit, or None for any other value."""
    if not isinstance(value, Scalar):
        return None
    if value.exact is not None:
        return sympy.Rational(value.exact.numerator, value.exact.denominator)
    return parse_expression(value.latex)


def are_equal(truth: sympy.Expr, answer: sympy.Expr) -> bool:
    """Return whether two expressions are equal for all values of their variables, as far as sympy can prove it."""
    try:
        if truth == answer:
            return True
        if not truth.free_symbols and not answer.free_symbols:
            return _are_equal_constants(truth, answer)
        if truth.has(AppliedUndef) or answer.has(AppliedUndef) or not _agree_at_points(truth, answer):
            return False
        if sympy.expand(truth - answer) == 0:
            return True
        return bool(verify(truth, answer, timeout_seconds=None))
    except UNREADABLE:
        return False


def find_ratio(truth: sympy.Expr, answer: sympy.Expr) -> sympy.Expr | None:
    """Return the constant c, not 0, for which truth = c * answer, or None if there is none.

    It is also None if the two have different variables or no variables.
    """
    try:
        if truth.has(AppliedUndef) or not truth.free_symbols or truth.free_symbols != answer.free_symbols:
            return None
        point = _choose_point(truth.free_symbols, 0)
        ratio = truth.xreplace(point) / answer.xreplace(point)
        value = sympy.N(ratio, 15)
        is_constant = value.is_number and value.is_finite and abs(value) > 1e-9
        return ratio if is_constant and are_equal(truth, ratio * answer) else None
    except UNREADABLE:
        return None


def evaluate_real(expression: sympy.Expr) -> Fraction | None:
    """Evaluate a constant to `PRECISION` digits, and return it as a fraction.

    The result is None if the constant is not real and finite.
    """
    try:
        value = sympy.N(expression, PRECISION)
        return Fraction(str(value)) if value.is_Float or value.is_Rational else None
    except UNREADABLE:
        return None


def _spell(latex: str) -> str:
    """Convert plain text to LaTeX: sin(x) -> \\sin(x), x^10 -> x^{10}, abc -> a b c, degrees -> radians."""
    latex = _COMBINATIONS.sub(r"\\binom{\1}{\2}", _INTEGERS.sub(_compute, latex))
    latex = re.sub(r"\\log *_ *(?:\{ *e *\}|e)", r"\\ln ", latex)
    latex = _DEGREES.sub(r"(\1\\pi/180)", latex)
    latex = _LETTER.sub(r" \1 ", _VECTOR.sub(r" \1 ", latex))
    latex = _REPEATING.sub(_spell_fraction, latex)
    latex = _MARKED.sub(lambda match: match.group(1) or _spell_word(match.group()), latex)
    latex = _POWER.sub(r"^{\1}", _CAPITAL_I.sub(r"\\mathit{I}", latex))
    return _ARGUMENT.sub(r"\1(\2)", latex)


def _compute(match: re.Match[str]) -> str:
    """Return the value of a function of integers, as 6 for \\gcd(12, 18)."""
    integers = [number.replace(" ", "") for number in match.group(3).split(",")]
    if not all(re.fullmatch("-?[0-9]+", number) for number in integers):
        return match.group()
    functions: Mapping[str, Callable[..., int]] = {"gcd": math.gcd, "lcm": math.lcm, "max": max, "min": min}
    value = functions[match.group(2).lower()](*map(int, integers)) if len(integers) > 1 else int(integers[0])
    return f"({value})" if len(str(value)) <= MAX_DIGITS else match.group()


def _spell_fraction(match: re.Match[str]) -> str:
    value, _ = read_number(match.group())
    return match.group() if value is None else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _spell_word(word: str) -> str:
    if word in _PLAIN:
        return f"\\{word} "
    match = _PREFIX.match(word)
    if match and len(word) - match.end() <= 1:
        return f"\\{match.group()} {word[match.end() :]}"
    # Without spaces, the parser would read words such as "zeros" as commands.
    return " ".join(word)


def _evaluate(node: sympy.Basic, budget: list[int]) -> sympy.Expr | None:
    budget[0] -= 1
    if budget[0] < 0:
        return None
    if isinstance(node, sympy.Symbol):
        return sympy.I if node.name == "i" else sympy.Symbol(node.name, real=True)
    if isinstance(node, sympy.Float):
        return sympy.Rational(str(node))
    if isinstance(node, _ATOMS) or node in (sympy.oo, -sympy.oo):
        return node if _count_digits(node) <= MAX_DIGITS else None
    if not isinstance(node, _NODES):
        return None
    arguments: list[sympy.Expr] = []
    for argument in node.args:
        arguments.append(_evaluate(argument, budget))
        if arguments[-1] is None:
            return None
    if isinstance(node, sympy.Pow | sympy.exp) and not _is_small_power(*_split_power(node, arguments)):
        return None
    if isinstance(node, sympy.binomial):
        return _expand_binomial(*arguments)
    if isinstance(node, sympy.factorial) and not _is_small_factorial(arguments[0]):
        return None
    if isinstance(node, sympy.sinh | sympy.cosh | sympy.tanh) and not _is_moderate(arguments[0]):
        return None
    value = node.func(*arguments)
    return value if all(_count_digits(atom) <= 2 * MAX_DIGITS for atom in value.atoms(sympy.Rational)) else None


def _split_power(node: sympy.Basic, arguments: list[sympy.Expr]) -> tuple[sympy.Expr, sympy.Expr]:
    return (arguments[0], arguments[1]) if isinstance(node, sympy.Pow) else (sympy.E, arguments[0])


def _is_small_power(base: sympy.Expr, exponent: sympy.Expr) -> bool:
    if not _is_moderate(exponent):
        return False
    if not exponent.is_Rational:
        return True
    if exponent.q > MAX_DIGITS:
        return False
    if base.is_Rational:
        return bool(_count_digits(base) * abs(exponent) <= MAX_DIGITS)
    return bool(base.is_Symbol or base.is_NumberSymbol or abs(exponent) <= MAX_POWER)


def _is_moderate(exponent: sympy.Expr) -> bool:
    """Return whether an exponent is at most `MAX_DIGITS` in absolute value, or contains variables."""
    if exponent.free_symbols:
        return True
    size = sympy.N(sympy.Abs(exponent), 15)
    return bool(size.is_number and size.is_finite and size <= MAX_DIGITS)


def _is_small_factorial(argument: sympy.Expr) -> bool:
    return bool(argument.free_symbols or (argument.is_Integer and 0 <= argument <= MAX_FACTORIAL))


def _expand_binomial(upper: sympy.Expr, lower: sympy.Expr) -> sympy.Expr | None:
    """Return a binomial coefficient with variables as a polynomial, or None if its degree is large or unknown."""
    if not lower.is_Integer or not 0 <= lower <= MAX_POWER:
        return None
    return sympy.Mul(*(upper - index for index in range(int(lower)))) / sympy.factorial(lower)


def _count_digits(atom: sympy.Basic) -> int:
    """Estimate the number of decimal digits of a rational number. Any other atom counts as one digit."""
    if not isinstance(atom, sympy.Rational) or not atom.is_finite:
        return 1
    return max(1, abs(int(atom.p)).bit_length() * 3 // 10, int(atom.q).bit_length() * 3 // 10)


def _are_equal_constants(truth: sympy.Expr, answer: sympy.Expr) -> bool:
    if truth.is_Rational and answer.is_Rational:
        return bool(truth == answer)
    values = [sympy.N(constant, PRECISION) for constant in (truth, answer)]
    if not all(value.is_number and value.is_finite for value in values):
        return False
    scale = max(abs(values[0]), abs(values[1]))
    return bool(abs(values[0] - values[1]) <= scale * sympy.Float(10) ** -AGREEMENT)


def _agree_at_points(truth: sympy.Expr, answer: sympy.Expr) -> bool:
    symbols = truth.free_symbols | answer.free_symbols
    for number in range(POINTS):
        point = _choose_point(symbols, number)
        values = [sympy.N(expression.xreplace(point), 30) for expression in (truth, answer)]
        if not all(value.is_number and value.is_finite for value in values):
            continue
        scale = max(abs(values[0]), abs(values[1]))
        if abs(values[0] - values[1]) > scale * sympy.Float(10) ** -20:
            return False
    return True


def _choose_point(symbols: set[sympy.Basic], number: int) -> Mapping[sympy.Basic, sympy.Rational]:
    """Return the values of the variables at test point `number`. They are fixed, differ, and have both signs."""
    ordered = sorted(symbols, key=str)
    return {
        symbol: sympy.Rational((-1) ** (number * (index + 1)) * (17 + 23 * number + 7 * index), 13 + 4 * index + number)
        for index, symbol in enumerate(ordered)
    }
