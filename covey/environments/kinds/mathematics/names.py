r"""Names of quantities, as they stand before an equals sign: x, AB, |AB|, f(x), \vec{a}, S_{\triangle ABC}, P(X \le 2).

Main name: `is_name`. An equation such as 2x + z = 1 or |x - 1| = 5 is a relation, and its left side is not a name.
"""

import re

MAX_CHARACTERS = 100
"""Maximum length of a name in characters."""

_GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi"
    "|omega|Delta|Gamma|Omega|Phi|Psi|Sigma|Theta|Lambda|ell|pi"
)
_COMPUTED = re.compile(
    r"\\(?:lim|i{0,2}int|oint|sum|prod|gcd|lcm|max|min|det|dim|deg|arg|Pr|Re|Im)(?![a-zA-Z])"
    r"|\\text ?\{ ?(?:lcm|rank|tr|Var|Cov|Re|Im|LCM|GCD|area|Area) ?\}"
)
"""Pattern of commands that begin a computed quantity, which is a name if it has a variable: \\gcd(m, 8)."""
_INDEX = re.compile(r"[_^] ?(?:\{(?:[^{}]|\{[^{}]*\})*\}|[a-zA-Z0-9])")
_CONSTANT = re.compile(rf"(?:\\(?:pi(?![a-zA-Z])|(?!(?:{_GREEK})(?![a-zA-Z]))[a-zA-Z]+)|[^a-zA-Z\\])+")
_VARIANCE = re.compile(r"(?:\\sigma|s) ?\^ ?\{? ?2 ?\}?")
_RATIO_OF_ANGLE = re.compile(
    rf"\\(?:sin|cos|tan|cot|sec|csc) ?(?:\^ ?\{{2\}} ?)?[0-9]? ?(?:\\angle ?[A-Z]{{1,3}}|[A-D]|\\(?:{_GREEK}))"
    rf"|\\(?:sin|cos|tan|cot|sec|csc) ?\((?:[0-9A-D+\- ]|\\(?:angle|{_GREEK})(?![a-zA-Z])){{1,30}}\)"
)
_SIMPLER = (
    (re.compile(r"\\text ?\{ ?([a-zA-Z ]*?) ?\}"), r"\1"),
    (re.compile(r"\\mathbb ?\{? ?([EP]) ?\}?"), r"\1"),
    (re.compile(r"(?<![a-zA-Z])E ?\[[^\[\]]*\]|\( ?[a-z](?: ?\\circ ?[a-z])+ ?\) ?(?=\()"), "f"),
    (re.compile(r"\[ ?[A-Z]{3,9} ?\]|(?:(\|)|n ?\() ?[A-Z](?: ?\\(?:cup|cap|setminus) ?[A-Z])+ ?(?(1)\||\))"), "v"),
    (re.compile(rf"\\(?:vec|hat|bar|tilde|d?dot) ?\{{ ?(?:[a-zA-Z]{{1,3}}|\\(?:{_GREEK})) ?\}}"), " v"),
    (re.compile(r"_ ?(?:\{[^{}]*\}|[a-zA-Z0-9])"), ""),
    (re.compile(r"\^ ?(?:\{ ?(?:-1|'{1,3}|\([a-z0-9]\)|\*|T) ?\}|\*|T)|'"), ""),
    (re.compile(r"(?<=[a-zA-Z}])\((?:[a-zA-Z]|[0-9]{1,4}|[a-zA-Z](?:, ?[a-zA-Z])+)\)"), ""),
    (re.compile(r"(?<![a-zA-Z])(?:[fghpqrEFGHPQRTWDN]|v|\\(?:phi|varphi|psi|mu|sigma)|Var|Cov|Pr) ?\([^()]*\)"), "f"),
    (re.compile(r"\|[a-z+\-0-9 ]*v[a-z+\-0-9 ]*\|"), "v"),
)
"""Parts of names that are replaced before the rest is checked: marks, indexes, primes, arguments and lengths."""
_NAME = re.compile(rf"(?:[a-zA-Z]|\\(?:angle|triangle|frac|cdot|parallel|{_GREEK})(?![a-zA-Z])|[{{}}()|,:/ ]){{1,60}}")
_DISTANCE = re.compile(r"\| ?[xyt] ?\|")
_PRODUCT = re.compile(r"[xyz ]*[xyz] ?[xyz][xyz ]*")


def is_name(text: str) -> bool:
    """Return whether a side of an equation names a quantity."""
    text = text.strip()
    if not text or len(text) > MAX_CHARACTERS:
        return False
    computed = _COMPUTED.match(text)
    if computed:
        return _CONSTANT.fullmatch(_INDEX.sub("", text[computed.end() :]).strip()) is None
    if _RATIO_OF_ANGLE.fullmatch(text) or _VARIANCE.fullmatch(text):
        return True
    if _PRODUCT.fullmatch(text) or _DISTANCE.fullmatch(text):
        return False
    for pattern, simpler in _SIMPLER:
        text = pattern.sub(simpler, text)
    return _NAME.fullmatch(text) is not None and any(mark.isalpha() for mark in text)


def is_sum_of_names(text: str) -> bool:
    """Return whether a side adds names of one letter, as in m + n = 116."""
    return re.fullmatch(r" ?[a-zA-Z](?: ?\+ ?[a-zA-Z]){1,9} ?", text) is not None


def squeeze(text: str) -> str:
    """Return a name without spaces, braces and text commands. An arrow or the hat of an estimate does not matter."""
    return re.sub(r"\\(?:text|vec|hat)(?![a-zA-Z])|[ {}]", "", text)


def mentions(text: str, name: str) -> bool:
    """Return whether an expression is the given name or, if the name is one letter, contains it.

    An equation such as "x = x" gives the name no value.
    """
    return squeeze(text) == squeeze(name) or (
        len(name) == 1 and re.search(rf"(?<![a-zA-Z\\]){name}(?![a-zA-Z])", text) is not None
    )
