r"""Converts a mathematical answer to a normal form: checks its size, then unifies the many spellings of LaTeX.

Main names: `normalise`, `find_closing`. The normal form has neither layout commands nor dollar signs, and it
has braces around every argument. The module `reading` parses its structure. Time is linear in the answer's
length.
"""

import re

from covey.environments.kinds.mathematics.numerals import spell_numbers

MAX_CHARACTERS = 2_000
"""Maximum length of an answer in characters. Longer answers are wrong. A long reference answer raises this
limit, so that a correct answer fits.
"""
MAX_DIGITS = 1_000
"""Maximum number of digits of one number in an answer."""
MAX_DEPTH = 16
"""Maximum nesting depth of brackets of all kinds."""
MAX_ROUND_DEPTH = 6
"""Maximum nesting depth of round brackets, whose parsing time grows steeply with depth."""

ROW_END = "\ue000"
"""Character that replaces the two backslashes at the end of a matrix row. No answer may contain it."""

_UNICODE = {
    "\u2212": "-", "\u2013": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u2217": "*",
    "\u00f7": "/", "\u2215": "/", "\u2044": "/", "\u03c0": r"\pi ", "\u221e": r"\infty ", "\u2264": r"\le ",
    "\u2265": r"\ge ", "\u2260": r"\ne ", "\u00b0": r"^\circ ", "\u222a": r"\cup ", "\u2229": r"\cap ",
    "\u2208": r"\in ", "\u00b1": r"\pm ", "\u2213": r"\mp ", "\u211d": r"\mathbb{R}", "\u2124": r"\mathbb{Z}",
    "\u2205": r"\emptyset ", "\u2216": r"\setminus ", "\u2248": r"\approx ", "\u2243": r"\approx ",
    "\u2250": r"\approx ", "\u2252": r"\approx ", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2026": "...",
    "\u2103": r"^\circ C", "\u2109": r"^\circ F", "\u2032": "'", "\u2033": "''", "\u2019": "'",
    "\u20ac": r"\euro ", "\u00a3": r"\pounds ", "\u00a5": r"\yen ", "\u20b9": r"\rupee ", "\u00b5": r"\mu ",
    "\u27e8": r"\langle ", "\u27e9": r"\rangle ", "\u03b8": r"\theta ", "\u03b1": r"\alpha ",
    "\u03b2": r"\beta ", "\u03b3": r"\gamma ", "\u03bb": r"\lambda ", "\u03c6": r"\phi ", "\u03c9": r"\omega ",
    "\u00bd": r"\frac{1}{2}", "\u00bc": r"\frac{1}{4}", "\u00be": r"\frac{3}{4}", "\u2153": r"\frac{1}{3}",
    "\u2154": r"\frac{2}{3}", "\u03c3": r"\sigma ",
    "\u03bc": r"\mu ", "\u0394": r"\Delta ", "\u25b3": r"\triangle ", "\u2220": r"\angle ", "\uff0c": ",",
}  # fmt: skip
_TRANSLATION = str.maketrans(_UNICODE)
_SUPERSCRIPTS = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
_SUPERSCRIPT = re.compile(f"\u207b?[{_SUPERSCRIPTS}]+")
_DOTTED = re.compile("([0-9])[\u0305\u0307]")
_ROOT = re.compile(r"(?:\u221a|\\sqrt(?![a-zA-Z])|(?<![\\a-zA-Z])sqrt(?![a-zA-Z]))\s*")
_LAYOUT = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|nolimits|scriptstyle|rm|bf)(?![a-zA-Z])\s?\.?"
    r"|\\!\s*|\\[,;:>]|~|\$"
)
_SET_COMMA = re.compile(r",\\!\s*")
_SPACE = re.compile(r"(?:\\ |\\q?quad|\s|\\[hv]space\*?\{[^{}]*\})+")
_SYNONYMS = {name: new for new, names in {
    "frac": "dfrac tfrac cfrac", "binom": "dbinom tbinom", "<=": "le leq leqslant", ">=": "ge geq geqslant",
    "ne": "neq", "<": "lt", ">": "gt", "*": "ast", ":": "colon", "'": "prime",
    "|": "mid vert lvert rvert Vert lVert rVert",
    "text": "textbf textit textrm textsf texttt textnormal mathrm mathbf mathit mathsf mathcal operatorname boldsymbol "
            "bm pmb mbox hbox emph underline",
    "approx": "simeq doteq fallingdotseq risingdotseq approxeq thickapprox", "vec": "overrightarrow", "hat": "widehat",
    "tilde": "widetilde", "bar": "overline", "...": "dots ldots cdots dotsc", "{": "lbrace", "}": "rbrace",
    "[": "lbrack", "]": "rbrack", "(": "langle", ")": "rangle", "i": "imath", "emptyset": "varnothing",
    "setminus": "backslash smallsetminus", "circ": "degree textdegree", "circ C": "celsius", "euro": "texteuro",
    "dollar": "mathdollar textdollar",
}.items() for name in names.split()}  # fmt: skip
_FUNCTIONS = {name: new for new, names in {
    "sin": "sin", "cos": "cos", "tan": "tan tg", "cot": "cot ctg cotg cotan", "sec": "sec", "csc": "csc cosec",
    "arcsin": "arcsin asin", "arccos": "arccos acos", "arctan": "arctan arctg atan",
    "arccot": "arccot arcctg arccotg acot", "arcsec": "arcsec", "arccsc": "arccsc arccosec", "sinh": "sinh sh",
    "cosh": "cosh ch", "tanh": "tanh th", "coth": "coth cth", "arsinh": "arsinh arcsinh asinh arsh",
    "arcosh": "arcosh arccosh acosh arch", "artanh": "artanh arctanh atanh arth", "log": "log", "ln": "ln",
    "exp": "exp", "log_{10}": "lg", "log_{2}": "lb",
}.items() for name in names.split()}  # fmt: skip
"""Spellings of functions, each with the command that the parser knows."""
_SYMBOLS = {name: name for name in (
    "alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "sigma", "omega", "phi", "psi", "rho", "tau", "pi",
    "infty",
    "Delta",
)} | {"infinity": "infty", "Infinity": "infty", "inf": "infty"}  # fmt: skip
"""Plain names of symbols, each with its command."""
_ARGUMENT = r"(?=\s*(?:[(\^_{|0-9]|[a-zA-Z](?![a-zA-Z])|\\(?!cdot|times|div|text|le|ge|ne|in|cup|cap|approx)[a-zA-Z]))"
_SPELLINGS = "|".join(sorted(_FUNCTIONS, key=len, reverse=True))
_IN_TEXT = re.compile(
    rf"\\text\s*\{{\s*(?:({_SPELLINGS})\s*\}}{_ARGUMENT}|({'|'.join(_SYMBOLS)})\s*\}})|(\\text\s*\{{[^{{}}]*\}})"
    rf"|(?<![a-zA-Z\\])(?<![0-9](?=th|lb))(?<![0-9] (?=lb))(?:({_SPELLINGS})(?![a-zA-Z]){_ARGUMENT}"
    rf"|(tg|ctg|lg|arctg|arcctg)(?=[a-z](?![a-zA-Z]))|({'|'.join(_SYMBOLS)})(?![a-zA-Z]))"
)
"""Names of functions and symbols in \\text{...} or in plain text, and other \\text{...}, which stays unchanged."""
_PROGRAMMED = (
    (re.compile(r"(?<![a-zA-Z\\])(\\text ?\{ ?)?(?:abs) ?(?(1)\} ?)\(([^()]*)\)"), r"|\2|"),
    (re.compile(r"(?<![a-zA-Z\\])(\\text ?\{ ?)?(?:cbrt) ?(?(1)\} ?)(?=\()"), r"\\sqrt[3]"),
    (re.compile(r"(?<![a-zA-Z\\])log_?(2|10) ?(?=\()"), r"\\log_{\1}"),
    (re.compile(r"\+ ?/ ?-|(?:^|(?<==)|(?<== ))\+-(?= ?[0-9\\a-z(])"), r"\\pm "),
)
"""Functions and signs as programs write them, each with its command."""
_COMMAND = re.compile(r"\\([a-zA-Z]+)\s*")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))
_ABOUT = re.compile(r"((?:^|[\s(\[])[-+]?[0-9.,]{1,40})?\s?(?:(?<=\s)~|\\sim)\s*(?=[-+]?[0-9]*\.[0-9])")
"""Pattern of "~" before a decimal, with the plain number before it, if there is one: "2.5 ~ 3.5" is a range."""
_LONE_DOLLAR = re.compile(r"\$(?= ?[-+]?[0-9.])|(?<=[0-9])\$$")
_RAISED_O = re.compile(r"(?<=[0-9])\^ ?(?:\{ ?o ?\}|o(?![a-zA-Z]))")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_LONG_NUMBER = re.compile(rf"[0-9]{{{MAX_DIGITS + 1}}}")
_BRACKETS = re.compile(r"[({\[\])}]")


def normalise(text: str, *, limit: int = MAX_CHARACTERS) -> str | None:
    """Return the normal form of an answer, or None if it is empty, exceeds a limit or contains a control character.

    `limit` is the maximum number of characters of `text`. Twice as many are allowed after Unicode symbols have
    been replaced with commands.
    """
    if len(text) > limit or _LONG_NUMBER.search(text):
        return None
    if ROW_END in text or any(mark < " " and mark not in "\t\n\r" for mark in text):
        return None
    text = _strip_wrappers(text)
    # Two backslashes end a row in a matrix. Elsewhere they are one backslash that was escaped twice.
    text = text.replace(r"\\", ROW_END if r"\begin" in text else "\\")
    text = _DOTTED.sub(r"\\dot{\1}", _SUPERSCRIPT.sub(_spell_superscript, text)).translate(_TRANSLATION)
    text = _spell_signs(text).replace(r"\|", "|")
    text = _COMMAND.sub(_replace_synonym, text)
    text = _LAYOUT.sub("", _SET_COMMA.sub("{,}", text))
    text = _SPACE.sub(" ", text).strip()
    text = _RAISED_O.sub(r"^\\circ ", text)
    for pattern, command in _PROGRAMMED:
        text = pattern.sub(command, text)
    text = _ROOT.sub(r"\\sqrt ", text).replace("**", "^").replace("!=", r"\ne ")
    text = re.sub(" +", " ", _IN_TEXT.sub(_spell_name, text)).strip()
    text = _strip_stop(text)
    if not text or len(text) > 2 * limit or not _is_shallow(text):
        return None
    text = spell_numbers(_brace_arguments(text))
    return None if _LONG_NUMBER.search(text) else text


def find_closing(text: str, start: int) -> int | None:
    """Return the position of the brace that closes the one at `start`, or None if it is never closed."""
    depth = 0
    position = start
    while position < len(text):
        if text[position] == "\\":
            position += 1
        elif text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None


def _strip_wrappers(text: str) -> str:
    """Remove what encloses the whole answer: dollar signs, display brackets, emphasis, a box."""
    for _ in range(4):
        text = _strip_stop(text.strip())
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : -len(closing)]
            if len(text) > len(opening + closing) and text.startswith(opening) and text.endswith(closing):
                text = inner.strip() if opening not in inner and closing not in inner else text
        box = _BOX.match(text)
        if box and find_closing(text, box.end() - 1) == len(text) - 1:
            text = text[box.end() : -1]
    return text


def _strip_stop(text: str) -> str:
    return text[:-1].rstrip() if text.endswith((".", ",", ";")) and not text.endswith(("\\,", "\\;", "..")) else text


def _spell_superscript(match: re.Match[str]) -> str:
    digits = "".join("-" if mark == "\u207b" else str(_SUPERSCRIPTS.index(mark)) for mark in match.group())
    return f"^{{{digits}}}"


def _spell_signs(text: str) -> str:
    """Replace signs whose meaning depends on what surrounds them: a dollar at a number, and "~" before a decimal."""
    text = text.replace(r"\$", r"\dollar ")
    if text.count("$") == 1:
        text = _LONE_DOLLAR.sub(r"\\dollar ", text)
    return _ABOUT.sub(lambda match: match.group() if match.group(1) else r"\approx ", text)


def _spell_name(match: re.Match[str]) -> str:
    function, symbol, text, plain, joined, plain_symbol = match.groups()
    if text:
        return text
    name = function or plain or joined
    return f"\\{_FUNCTIONS[name]} " if name else f"\\{_SYMBOLS[symbol or plain_symbol]} "


def _replace_synonym(match: re.Match[str]) -> str:
    name = match.group(1)
    new = _SYNONYMS.get(name) or _FUNCTIONS.get(name)
    if new is None or new == name:
        return match.group()
    if new in "{}":
        return "\\" + new
    return f"\\{new} " if new[0].isalpha() else new


def _is_shallow(text: str) -> bool:
    depth = deepest = round_depth = round_deepest = 0
    for match in _BRACKETS.finditer(text):
        step = 1 if match.group() in "({[" else -1
        depth += step
        deepest = max(deepest, depth)
        if match.group() in "()":
            round_depth += step
            round_deepest = max(round_deepest, round_depth)
    return deepest <= MAX_DEPTH and round_deepest <= MAX_ROUND_DEPTH


def _brace_arguments(text: str) -> str:
    r"""Put braces around arguments that lack them: \frac12, \sqrt 3, \vec a, and \sqrt(3) from plain text."""
    pieces: list[str] = []
    position = 0
    for match in re.finditer(r"\\(frac|binom|sqrt|vec|hat|bar|tilde|d?dot)(?![a-zA-Z])\s*", text):
        if match.start() < position:
            continue
        pieces.append(text[position : match.start()] + f"\\{match.group(1)}")
        position = match.end()
        if match.group(1) == "sqrt" and text[position : position + 1] == "[":
            end = text.find("]", position)
            if end < 0:
                continue
            pieces.append(text[position : end + 1])
            position = end + 1
        for _ in range(2 if match.group(1) in ("frac", "binom") else 1):
            position = _skip_space(text, position)
            token = _read_token(text, position, is_root=match.group(1) == "sqrt")
            closing = find_closing(text, position) if text[position : position + 1] == "{" else None
            if closing is not None:
                # The nesting is bounded, so the recursion is too.
                pieces.append(f"{{{_brace_arguments(text[position + 1 : closing])}}}")
                position = closing + 1
            elif token is not None:
                pieces.append(f"{{{token}}}")
                position += len(token)
            else:
                break
    return "".join([*pieces, text[position:]])


def _skip_space(text: str, position: int) -> int:
    return position + 1 if text[position : position + 1] == " " else position


def _read_token(text: str, position: int, *, is_root: bool) -> str | None:
    """Return an argument that is written without braces, or None if it has braces or is missing."""
    rest = text[position:]
    if is_root:
        match = re.match(r"[0-9]+|\([^()]*\)|[a-zA-Z]|\\[a-zA-Z]+", rest)
    else:
        match = re.match(r"[0-9a-zA-Z]|\\pi(?![a-zA-Z])", rest)
    return match.group() if match else None
