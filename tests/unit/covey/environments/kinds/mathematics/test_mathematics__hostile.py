"""Answers that would take long, raise an exception or look right. All are wrong, and each is graded fast."""

import time

import pytest

from covey.environments.kinds.mathematics.mathematics import is_right
from tests.fakes.cpu_unit import measure_cpu_unit

pytestmark = pytest.mark.unit

TRUTHS = ["42", "x^2+1", "[1,2)", r"\frac{\sqrt{3}}{2}"]
HEAVY = {
    "power tower": "9^{9^{9^{9}}}",
    "power tower in plain text": "9**9**9**9",
    "power tower of powers": "(((9^9)^9)^9)^9",
    "power of ten of ten": "10^{10^{10}}",
    "tower of exponentials": "e^{e^{e^{e^{e}}}}",
    "small exponent of a large root": r"\sqrt[99999999]{2}",
    "decimal exponent": "2^{0.00000001}",
    "exponent of a thousand digits": "2^{" + "9" * 900 + "}",
    "factorial": "1000000000!",
    "factorial of a factorial": "(10!)!",
    "double factorial": "99!!!!!",
    "binomial": r"\binom{1000000000}{500000000}",
    "largest binomial": r"\binom{999}{500}",
    "sum": r"\sum_{k=1}^{1000000000} k",
    "product": r"\prod_{k=1}^{1000000000} k",
    "integral": r"\int_0^1 x^x dx",
    "limit": r"\lim_{x\to 0} \frac{\sin x}{x}",
    "derivative": r"\frac{d}{dx} x^{1000}",
    "floor of a tower": r"\lfloor 9^{9^{9}} \rfloor",
    "matrix of zeros": "zeros(100000)",
    "identity matrix": "eye(100000)",
    "greatest divisor": r"\gcd(10^{100},10^{99})",
    "power of a sum": "(x+y+z+w)^{16}",
    "power of a power of a sum": "((x+y)^{16}+1)^{16}",
    "huge power of a sum": "(x+1)^{1000}",
    "huge power": "x^{99999}",
    "power of surds": r"(\sqrt{2}+\sqrt{3}+\sqrt{5}+\sqrt{7})^{16}",
    "sines in sines": r"\sin(\sin(\sin(\sin(x))))",
    "sine of a long number": r"\sin(10^{900})",
    "hyperbolic cosine": r"\cosh(100000)",
    "long number": "4" * 1_001,
    "hundred thousand digits": "4" * 100_000,
    "million digits": "4" * 1_000_000,
    "long decimal": "0." + "3" * 100_000,
    "long exponent": "1e" + "9" * 1_000,
    "long negative exponent": "1e-999",
    "long repeating decimal": r"0.\overline{" + "3" * 900 + "}",
    "nested round brackets": "(" * 900 + "1" + ")" * 900,
    "nested braces": "{" * 900 + "1" + "}" * 900,
    "nested square brackets": "[" * 900 + "1" + "]" * 900,
    "nested fractions": r"\frac{1}{" * 300 + "2" + "}" * 300,
    "nested roots": r"\sqrt{" * 300 + "2" + "}" * 300,
    "nested fractions below the bound": r"\frac{1}{" * 14 + "2" + "}" * 14,
    "nested sets": r"\{" * 15 + "1" + r"\}" * 15,
    "deep nesting of a megabyte": "{" * 1_000_000,
    "open boxes": r"\boxed{" * 280,
    "open fractions": r"\frac{" * 300,
    "many signs": "-" * 399 + "1",
    "many minus signs": "-" * 1_000,
    "many powers": "x^" * 100 + "x",
    "many carets": "^" * 300,
    "many letters": "x" * 400,
    "many summands": "+".join(["1"] * 190),
    "many items": ",".join(["1"] * 900),
    "many relations": "1<" * 100 + "2",
    "many equations": "x=" * 100 + "5",
    "many unions": r"[1,2)\cup" * 100 + "[3,4]",
    "many plus-minus": r"\pm " * 300,
    "many texts": r"\text{" * 300,
    "many dollars": "$" * 1_999,
    "many ors": "a or " * 400,
    "matrix of matrices": r"\begin{pmatrix}" * 100,
    "wide matrix": r"\begin{pmatrix}" + "&".join(["1"] * 400) + r"\end{pmatrix}",
    "thousands without end": "1,000" + ",000" * 400,
    "many escaped spaces": "1" + "\\\\ " * 600,
    "many spaces": "1" + " " * 1_900 + "m",
    "many groups with spaces": "1" + " 000" * 450,
    "many dotted digits": "0." + r"\dot{1}" * 280,
    "period without end": "0." + "12" * 450 + "...",
    "many units": "5 " + r"\text{m}/" * 200,
    "many unit words": "5 " + "km " * 600,
    "many quantities": "3 hours " * 200,
    "many approximations": r"1\approx " * 180,
    "many names": r"\vec{a}" * 250 + "=5",
    "many arguments": "f(" * 600,
    "many tildes": " ~ " * 600,
    "many functions": "sin " * 400,
    "many cases": r"\begin{cases}x=1\\" * 90,
    "many memberships": r"x \in " * 330,
    "many currencies": "\u20ac" * 1_900,
    "division by zero": r"\frac{1}{0}",
    "zero to the power of zero": "0^{0}",
    "infinity minus infinity": r"\infty-\infty",
    "zero byte": "42\x00",
    "escape sequence": "\x1b[31m42",
    "private use": "4\ue0002",
}


@pytest.mark.parametrize("name", HEAVY)
def test_is_right__heavy_answer__is_wrong_and_fast(name):
    started = time.process_time()
    assert [truth for truth in TRUTHS if is_right(HEAVY[name], [truth])] == []
    # The bound is generous, because the parser builds its tables during the first calls.
    assert time.process_time() - started < 800 * measure_cpu_unit()


@pytest.mark.parametrize("name", HEAVY)
def test_is_right__heavy_truth__never_raises(name):
    assert not is_right("43", [HEAVY[name]])


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("42", r"\def\x{42}\x"),
        ("42", r"\newcommand{\x}{42}\x"),
        ("42", r"\let\a=4\a2"),
        ("42", r"\csname 42\endcsname"),
        ("42", r"\phantom{42}"),
        ("42", "4\u200b2"),
        ("42", "42\u200b"),
        ("42", "\u202e24"),
        ("42", "\u0664\u0662"),
        ("42", "42 or 43"),
        ("42", "42, 43"),
        ("42", r"\{42, 43\}"),
        ("42", r"42 \text{ or } 43"),
        ("42", r"42 \quad 43"),
        ("42", r"42 \lor 43"),
        ("42", r"42 \pm 0"),
        ("42", "[42, 42]"),
        ("42", "[0, 100]"),
        ("42", "x > 41"),
        ("42", r"x \in \mathbb{R}"),
        ("42", "x = 42 = 43"),
        ("42", "42 = 42 = 43"),
        ("x", "x = x"),
        ("x", "x=x"),
        ("x+1", "x+1 = x+1+y"),
        ("x", "\u0445"),
        ("x", "\u2179"),
        ("x = 5", "x = x"),
        ("x = 5", "x = 5 + x"),
        ("x^2 = 4", "0 = 0"),
        ("x^2+1 = 0", "x^2+2 = 0"),
        ("x+y = 1", "0 = 0"),
        ("(2, 1)", "(3, 1)"),
        ("(2, 1)", r"\emptyset"),
        (r"\emptyset", "(2, 1)"),
        ("1000000", "1000000.4"),
        ("123456789", "123456789.1"),
        ("0", "0.0000001"),
        ("0.0000001", "0.0000002"),
        (r"\sqrt{2}", "1.414214 or 1.5"),
        (r"|x-10|", "10-x"),
        (r"\sqrt{x^2}", "x"),
        (r"10^{-30}x", "2 \\cdot 10^{-30}x"),
        ("a", "A"),
        ("east", "seat"),
        ("12:30", r"\frac{2}{5}"),
        (r"[1,2)\cup(2,3]", "[1,3]"),
        ("x > 0", "x > 0, y > 0"),
    ],
)
def test_is_right__answer_made_to_cheat__is_wrong(truth, answer):
    assert not is_right(answer, [truth])
