"""Normal form of answers as strings, and the bounds that are checked first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.environments.kinds.mathematics.latex import MAX_CHARACTERS, MAX_DIGITS, find_closing, normalise

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("$ 5 $", "5"),
        (r"\[ 5 \]", "5"),
        (r"$\boxed{\boxed{5}}$.", "5"),
        ("**5**", "5"),
        (r"\left( 1,2 \right)", "( 1,2 )"),
        (r"\dfrac12", r"\frac{1}{2}"),
        (r"\frac1{23}", r"\frac{1}{23}"),
        (r"\frac{a}b", r"\frac{a}{b}"),
        (r"\sqrt 12", r"\sqrt{12}"),
        (r"\sqrt[3]2", r"\sqrt[3]{2}"),
        ("sqrt(x+1)", r"\sqrt{(x+1)}"),
        ("\u221a3", r"\sqrt{3}"),
        ("x\u00b2", "x^{2}"),
        ("x\u207b\u00b9\u2070", "x^{-10}"),
        (r"1{,}000", "1000"),
        (r"1,\!000", "1000"),
        (r"1\,000", "1000"),
        (r"\$5", r"\dollar 5"),
        ("$5", r"\dollar 5"),
        ("5$", r"5\dollar"),
        ("$5$ and $6$", "5 and 6"),
        ("\u20ac5", r"\euro 5"),
        (r"\operatorname{tg} x", r"\tan x"),
        (r"\mathrm{lg} 5", r"\log_{10} 5"),
        (r"\arcctg x", r"\arccot x"),
        ("ctg x", r"\cot x"),
        ("sin x", r"\sin x"),
        ("tgx", r"\tan x"),
        ("infinity", r"\infty"),
        (r"5 \text{ min}", r"5 \text{ min}"),
        (r"5 \text{ lb}", r"5 \text{ lb}"),
        ("5th x", "5th x"),
        (r"\vec a", r"\vec{a}"),
        (r"\overline{3}", r"\bar{3}"),
        (r"a \simeq 2", r"a \approx 2"),
        ("1/3 ~ 0.333", r"1/3\approx 0.333"),
        ("2.5 ~ 3.5", "2.5 3.5"),
        (r"x \leq 2", "x <=2"),
        (r"\mathrm{cm}", r"\text {cm}"),
        ("x**2", "x^2"),
        (r"\\frac{1}{2}", r"\frac{1}{2}"),
        (r"1\ 2", "1 2"),
    ],
)
def test_normalise__spellings__have_one_form(text, form):
    assert normalise(text) == form


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ".",
        "$",
        "1" * (MAX_DIGITS + 1),
        "x" * (MAX_CHARACTERS + 1),
        "{" * 17,
        "(" * 7,
        "\u221e" * MAX_CHARACTERS,
        "4\x002",
        "4\ue0002",
    ],
)
def test_normalise__beyond_a_bound__is_none(text):
    assert normalise(text) in (None, "$")


def test_normalise__at_the_bounds__is_read():
    assert normalise("1" * MAX_DIGITS) == "1" * MAX_DIGITS
    assert normalise("(" * 6 + "1" + ")" * 6) is not None
    assert normalise("x" * 3_000, limit=3_000) == "x" * 3_000


def test_normalise__matrix__keeps_the_ends_of_its_rows():
    form = normalise(r"\begin{pmatrix}1 & 2\\ 3 & 4\end{pmatrix}")
    assert form is not None
    assert form.count("\ue000") == 1


@pytest.mark.parametrize(("text", "end"), [("{a}", 2), ("{{a}b}c", 5), (r"{\}}", 3), ("{a", None), ("{", None)])
def test_find_closing__brace__returns_its_partner(text, end):
    assert find_closing(text, 0) == end


@given(st.text(alphabet="01x+-^_{}()[]\\$.,; frac sqrt\u00b2\u221a\n", max_size=200))
def test_normalise__any_text__never_raises_and_stays_bounded(text):
    form = normalise(text)
    assert form is None or 0 < len(form) <= 8 * len(text) + 16
