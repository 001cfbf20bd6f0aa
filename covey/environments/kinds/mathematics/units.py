"""Units and percent signs after a number, and the conversion between units of one dimension."""

import math
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

_DEFINITIONS = {
    "m": {"m": "1", "mm": "1/1000", "cm": "1/100", "dm": "1/10", "km": "1000", "in": "0.0254", "ft": "0.3048",
          "yd": "0.9144", "mi": "1609.344", "nm": "1e-9", "micrometer": "1e-6", "nmi": "1852"},
    "m2": {"hectare": "10000", "acre": "4046.8564224"},
    "m3": {"ml": "1e-6", "cl": "1e-5", "dl": "1e-4", "l": "1e-3", "gallon": "0.003785411784"},
    "s": {"s": "1", "ms": "1/1000", "min": "60", "h": "3600", "day": "86400", "week": "604800", "month": "2629746",
          "year": "31556952"},
    "s-1": {"hz": "1", "khz": "1000", "mhz": "1e6"},
    "g": {"mg": "1/1000", "g": "1", "kg": "1000", "t": "1e6", "lb": "453.59237", "oz": "28.349523125"},
    "m s-1": {"mph": "0.44704", "kmh": "5/18", "knot": "463/900"},
    "g m s-2": {"N": "1000", "kN": "1e6"},
    "g m2 s-2": {"J": "1000", "kJ": "1e6", "cal": "4184", "kcal": "4184000", "eV": "1.602176634e-16"},
    "g m2 s-3": {"W": "1000", "kW": "1e6"},
    "g m-1 s-2": {"Pa": "1000", "kPa": "1e6", "atm": "101325000"},
    "A": {"A": "1", "mA": "1/1000"}, "A s": {"C": "1"},
    "g m2 s-3 A-1": {"V": "1000"}, "g m2 s-3 A-2": {"ohm": "1000"},
    "K": {"K": "1"}, "celsius": {"celsius": "1"}, "fahrenheit": {"fahrenheit": "1"}, "mol": {"mol": "1"},
    "degree": {"degree": "1", "arcmin": "1/60", "arcsec": "1/3600"}, "radian": {"rad": "1"},
    "dollar": {"dollar": "1", "cent": "1/100"}, "euro": {"euro": "1"}, "pound": {"pounds": "1", "pence": "1/100"},
    "yen": {"yen": "1"}, "rupee": {"rupee": "1"}, "yuan": {"yuan": "1"}, "ruble": {"ruble": "1"},
    "unit": {"unit": "1"}, "bit": {"bit": "1", "byte": "8"},
}  # fmt: skip
"""Units by dimension, each with its size as a multiple of the dimension's base units."""
_SYNONYMS = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "dm": "decimeter", "m": "meter metre",
    "km": "kilometer kilometre", "nm": "nanometer", "in": "inch inche", "ft": "foot feet", "yd": "yard", "mi": "mile",
    "s": "second sec", "min": "minute", "h": "hour hr", "day": "d", "week": "wk", "year": "yr", "ms": "millisecond",
    "g": "gram", "kg": "kilogram kilo", "mg": "milligram", "t": "ton tonne", "lb": "lbs", "oz": "ounce",
    "l": "liter litre L", "ml": "milliliter millilitre mL", "cl": "centiliter", "dl": "deciliter", "gallon": "gal",
    "hectare": "ha", "kmh": "kmph kph", "N": "newton", "J": "joule", "cal": "calorie", "W": "watt", "kW": "kilowatt",
    "Pa": "pascal", "V": "volt", "A": "ampere amp", "C": "coulomb", "hz": "hertz", "K": "kelvin", "mol": "mole",
    "celsius": "centigrade", "degree": "deg", "rad": "radian", "dollar": "buck USD usd", "cent": "\u00a2",
    "euro": "EUR eur", "pounds": "GBP", "rupee": "Rs INR", "yen": "JPY", "yuan": "RMB CNY", "ruble": "rouble",
}  # fmt: skip
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_SYMBOLS = {
    "g m2 s-3 A-1": "V", "g m2 s-3": "W", "g m2 s-2": "J eV cal", "g m s-2": "N", "g m-1 s-2": "Pa", "A": "A",
    "A s": "C", "A2 s4 g-1 m-2": "F", "g m2 s-2 A-2": "H", "g s-2 A-1": "T", "g m2 s-2 A-1": "Wb", "s-1": "Hz Bq",
    "m2 s-2": "Sv Gy", "cd": "cd lm", "cd m-2": "lx", "bit": "B", "g m2 s-3 A-2": "ohm", "mol": "mol", "m": "m",
    "s": "s mo", "g": "g", "m3": "L cc", "mol m-3": "M", "decibel": "dB", "clock": "AM PM am pm",
    "astronomical": "AU", "lightyear": "ly", "K": "K",
}  # fmt: skip
"""Symbols of units by dimension, which count only within \\text{...} because outside they are variables."""
_SYMBOL_SIZES = {"B": "8", "L": "1/1000", "cal": "4.184", "eV": "1.602176634e-19",
                 "cc": "1e-6", "mo": "2629746", "M": "1000"}  # fmt: skip
_PREFIXES = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "m": -3, "u": -6, "n": -9, "p": -12}
_NO_PREFIX = frozenset({"dB", "AM", "PM", "am", "pm", "AU", "ly", "cc", "mo"})
_PEOPLE = frozenset({"people", "persons", "children", "men", "women", "mice", "geese", "sheep", "fish", "paths"})
"""Nouns for several counted things whose form does not show it."""
_NUMBER_WORD = re.compile(
    "[a-z]*(?:teen|illion|illiard|th)s?"
    "|(?:(?:zero|nought|nil|null|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    "|(?:twen|thir|for|four|fif|six|seven|eigh|nine)t(?:y|ie)|hundred|thousand|dozen|score|gross|myriad|lakh|crore"
    "|googol|mille|half|halve|third|quarter|percent|percentage|double|triple|quadruple|factorial|negative|reciprocal"
    "|inverse|opposite|square|cube|root|power|modulo|remainder|exponent)(?:e?s)?)+"
)
"""Pattern of words that are numbers, fractions or operations, and so change the number before them."""
_NO_NOUN = re.compile(r"[a-z]*(?:ss|us|is|wards|times)|always|anyways|sideways|whereas|perhaps|does|others?|equals")
"""Pattern of words that end in "s" and name nothing that one can count."""
_AFTER_UNIT = frozenset({"away", "old", "long", "tall", "high", "wide", "deep", "thick", "each", "total", "altogether"})
"""Words after a unit that do not change it: 5 km away, 12 years old."""
_MAX_TAIL = 120
"""Maximum length of a unit, in characters."""
_MAX_UNITS = 4
"""Maximum number of units in a quantity such as 3 hours and 30 minutes."""
_PERCENT = re.compile(
    r"\s*(?:\\?%|\\text\s*\{\s*(?:\\?%|per ?cent|pct)\s*\}|(?<![a-zA-Z])(?:per ?cent|percentage|pct))$"
)
_CURRENCY = re.compile(
    r"([+-]?)\s*(?:\\(dollar|euro|pounds|yen|rupee)(?![a-zA-Z])|\\text\s*\{\s*(Rs|USD|EUR|GBP|INR)\.?\s*\}|(Rs|USD|EUR)\b\.?)"
    r"\s*(?=[-+]?[0-9.\\])"
)
_DEGREES = re.compile(
    r"\s*(?:\{ ?\})?\^?\s*\{?\s*\\circ\s*\}?\s*(?:\\text\s*\{\s*([CFK])\s*\}|([CF]))?$"
    r"|\s*\\text\s*\{\s*\^?\{?\\circ\s*\}?\s*([CF])\s*\}$"
)
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_IN_TEXT = re.compile(
    r"\s*/?\s*(?:\\frac\s*\{\s*)?\\text(?![a-zA-Z])|\s*\\mu ?\\text|\s*\\(?:dollar|euro|pounds|yen|rupee)(?![a-zA-Z])"
)
_OHM = re.compile(r"(\\text ?\{ ?[kMGm]?)\} ?\\Omega(?![a-zA-Z])")
_EMPTY = re.compile(r"\{ ?\} ?(?:\^? ?(?=\{? ?\\circ))?")
_MICRO = re.compile(r"\\mu ?\\text ?\{ ?([a-zA-Z]{1,2}) ?\}")
_WORD = r"[a-zA-Z]+\.?(?: ?\^ ?\{? ?-?[0-9] ?\}?)?"
_PLAIN = re.compile(rf"(?<=[0-9}} )]) *{_WORD}(?: ?(?:/|\\cdot|\*| ) ?{_WORD}){{0,5}}$")
_VARIABLE = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]")
_QUANTITY = re.compile(
    r" ?([0-9]{1,20}(?:\.[0-9]{1,20})?) ?(\\text ?\{[^{}]{1,40}\}|[a-zA-Z]{1,20}\.?) ?"
    r"(?:\\text ?\{ ?and ?\}|and(?![a-zA-Z]))?"
)
_AND = re.compile(r" and ?(?=\})")
_FRACTION = re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_POWER = re.compile(r"\^\s*\{\s*(-?[0-9])\s*\}")
_SCALE = re.compile(r"(?:degrees?|\^?\{? ?\\circ ?\}?) *(C|F|[cC]elsius|[fF]ahrenheit)(?![a-zA-Z])")
_TOKEN = re.compile(r"\s*(?:\\?([a-zA-Z\u00a2]+)\.?|\^ *(-?[0-9])|([/*()]))")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureUnit:
    """A unit of measurement, or a noun for counted objects such as "apples".

    Example: km/h is MeasureUnit(dimension=(("m", 1), ("s", -1)), factor=Fraction(5, 18)).
    """

    dimension: tuple[tuple[str, int], ...]
    """Base units and their exponents, sorted by name. The base unit "thing" is a word that is not a unit."""
    factor: Fraction
    """Size of the unit, as a multiple of its base units."""


def _read_dimension(powers: str) -> tuple[tuple[str, int], ...]:
    pairs = re.findall(r"([a-zA-Z]+)(-?[0-9])?", powers)
    return tuple(sorted((name, int(power or 1)) for name, power in pairs))


def _define_units() -> dict[str, MeasureUnit]:
    units: dict[str, MeasureUnit] = {}
    for powers, sizes in _DEFINITIONS.items():
        dimension = _read_dimension(powers)
        units |= {name: MeasureUnit(dimension=dimension, factor=Fraction(size)) for name, size in sizes.items()}
    return units | {name: units[unit] for unit, names in _SYNONYMS.items() for name in names.split()}


def _define_symbols() -> dict[str, MeasureUnit]:
    symbols: dict[str, MeasureUnit] = {}
    for powers, names in _SYMBOLS.items():
        for name in names.split():
            dimension = _read_dimension(name.lower() if powers == "clock" else powers)
            # The base unit of mass is the gram, so each unit of the SI with a mass has a factor of 1000.
            grams = dict(dimension).get("g", 0) if name != "g" else 0
            size = Fraction(_SYMBOL_SIZES.get(name, "1")) * Fraction(1000) ** grams
            for prefix, power in _PREFIXES.items():
                if not prefix or name not in _NO_PREFIX:
                    symbols[prefix + name] = MeasureUnit(dimension=dimension, factor=size * Fraction(10) ** power)
    return symbols


_UNITS = _define_units()
_SYMBOL_UNITS = {name: unit for name, unit in _define_symbols().items() if name not in _UNITS}
DEGREE, RADIAN, CELSIUS, FAHRENHEIT = (_UNITS[name].dimension for name in ("degree", "rad", "celsius", "fahrenheit"))
"""Dimensions of angles and temperatures, which `equality` compares in a special way."""
_THING = MeasureUnit(dimension=(("thing", 1),), factor=Fraction(1))
_TEMPERATURES = {"C": "celsius", "F": "fahrenheit"}
_LETTERS = frozenset("mshgLl")
"""Units of one letter that count outside \\text{...}. Other letters are variables there."""


def split_percent(latex: str) -> tuple[str, bool]:
    """Return the expression before a percent sign, and whether there was one."""
    match = _PERCENT.search(latex)
    return (latex[: match.start()], True) if match and match.start() else (latex, False)


def split_unit(latex: str) -> tuple[str, MeasureUnit | None, int]:
    r"""Return an expression without its unit, the unit or None, and the factor of words such as "million".

    Within \text{...}, known units and one plural noun count, and a word after "per" or "of". Outside \text{...} only
    known units count, and units of one letter count only after a number and a space. A currency may come first.
    """
    currency = _CURRENCY.match(latex)
    if currency:
        number, unit, scale = _split_suffix(currency.group(1) + latex[currency.end() :])
        money = _UNITS[next(name for name in currency.groups()[1:] if name)]
        if unit is None or unit.dimension == money.dimension:
            return number, money, scale
        return number, _multiply([(unit, 1), (money, 1)]), scale
    return _split_suffix(latex)


def _split_suffix(latex: str) -> tuple[str, MeasureUnit | None, int]:
    degrees = _DEGREES.search(latex)
    if degrees and degrees.start() and not _FUNCTION.search(latex):
        letter = next((letter for letter in degrees.groups() if letter), "degree")
        return latex[: degrees.start()], _UNITS[_TEMPERATURES.get(letter, letter)], 1
    match = _IN_TEXT.search(latex)
    is_text = match is not None
    match = match or _PLAIN.search(latex, max(0, len(latex) - _MAX_TAIL))
    if match is None or not match.start() or len(latex) - match.start() > _MAX_TAIL:
        return latex, None, 1
    number, tail = latex[: match.start()], latex[match.start() :]
    if not is_text and re.match(r" ?[a-zA-Z](?![a-zA-Z])", tail) and (tail[0] != " " or _VARIABLE.search(number)):
        return latex, None, 1
    factors = _read_factors(tail, is_text=is_text)
    if factors is None:
        return latex, None, 1
    scale = math.prod(_SCALES[word] for word in factors if isinstance(word, str))
    units = [factor for factor in factors if not isinstance(factor, str)]
    return number, _multiply(units) if units else None, scale


def read_quantity(text: str) -> tuple[Fraction, MeasureUnit] | None:
    """Return a quantity in two units or more, as 3 hours and 30 minutes, in its first unit.

    The result is None for anything else. The units have one dimension, and each is smaller than the one before.
    """
    parts: list[tuple[Fraction, MeasureUnit]] = []
    position = 0
    while position < len(text):
        match = _QUANTITY.match(text, position)
        if match is None or len(parts) == _MAX_UNITS:
            return None
        position = match.end()
        factors = _read_factors(_AND.sub("", match.group(2)), is_text="\\text" in match.group(2))
        unit = _multiply([factor for factor in factors if not isinstance(factor, str)]) if factors else None
        if unit is None or (parts and (unit.dimension != parts[0][1].dimension or unit.factor >= parts[-1][1].factor)):
            return None
        parts.append((Fraction(match.group(1)), unit))
    if len(parts) < 2 or _THING.dimension == parts[0][1].dimension:
        return None
    return sum(number * unit.factor for number, unit in parts) / parts[0][1].factor, parts[0][1]


def _read_factors(tail: str, *, is_text: bool) -> "list[tuple[MeasureUnit, int] | str] | None":
    """Return the units in a text with their exponents, and its words for numbers, or None if it has anything else."""
    tail = _MICRO.sub(r" \\text{u\1}", _OHM.sub(r"\1ohm}", tail))
    tail = _EMPTY.sub("", tail)
    text = _POWER.sub(r"^\1", _TEXT.sub(r" \1 ", _POWER.sub(r"^\1", tail)))
    text = _SCALE.sub(lambda match: f" {_TEMPERATURES[match.group(1)[0].upper()]} ", text)
    text = _FRACTION.sub(r"(\1)/(\2)", text).replace(r"\cdot", "*").replace(r"\times", "*").strip()
    factors: list[tuple[MeasureUnit, int] | str] = []
    sign = outer = prefix = 1
    position = 0
    last = ""
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        position = match.end()
        word, power, mark = match.groups()
        before, last = last, word or ""
        is_unit = bool(factors) and not isinstance(factors[-1], str)
        if mark or word == "per" or (word in ("a", "an") and (is_text or is_unit)):
            outer = sign if mark == "(" else 1 if mark == ")" else outer
            sign = 1 if mark and mark != "/" else -1
        elif power or word in ("squared", "cubed"):
            if not factors or isinstance(factors[-1], str):
                return None
            unit, exponent = factors[-1]
            factors[-1] = unit, exponent * (int(power) if power else _POWERS[word])
        elif word in _POWERS:
            prefix = _POWERS[word]
        elif word in _SCALES and not factors:
            factors.append(word)
        else:
            if (
                is_text
                and is_unit
                and (
                    word in _AFTER_UNIT
                    or (word == "of" and factors[-1][0] is _THING)
                    or (before == "of" and _is_plain(word))
                )
            ):
                continue
            found = find_unit(word, is_text=is_text)
            if found is None and is_text and (is_unit and sign < 0 if factors else sign > 0):
                found = _THING if _is_plain(word) and (sign < 0 or _is_plural(word)) else None
            if found is None or before == "of":
                return None
            factors.append((found, sign * outer * prefix))
            sign = prefix = 1
    return factors if factors and sign > 0 and last != "of" else None


def find_unit(word: str, *, is_text: bool = True) -> MeasureUnit | None:
    """Return the unit that a word names. Symbols such as GB are units only within \\text{...}."""
    if not is_text and len(word) == 1 and word not in _LETTERS:
        return None
    if is_text and word in _SYMBOL_UNITS:
        return _SYMBOL_UNITS[word]
    names = (word, word.removesuffix("s")) if len(word) > 1 else (word,)
    for name in (*names, *(each.lower() for each in names if len(each) > 1)):
        if name in _UNITS:
            return _UNITS[name]
    return None


def _is_plain(word: str) -> bool:
    """Return whether a word may describe what is counted: it is neither short nor a number nor an operation."""
    word = word.casefold()
    return word in _PEOPLE or (len(word) > 2 and not _NUMBER_WORD.fullmatch(word))


def _is_plural(word: str) -> bool:
    """Return whether a word is a plural noun, as far as its ending shows it."""
    word = word.casefold()
    return word in _PEOPLE or (len(word) > 3 and word.endswith("s") and not _NO_NOUN.fullmatch(word))


def _multiply(factors: list[tuple[MeasureUnit, int]]) -> MeasureUnit:
    """Return the product of powers of units. Words that describe a unit ("km away") do not count."""
    if any(exponent > 0 and unit is not _THING for unit, exponent in factors):
        factors = [(unit, exponent) for unit, exponent in factors if unit is not _THING or exponent < 0]
    elif any(exponent > 0 for _, exponent in factors):
        factors = [(_THING, 1), *((unit, exponent) for unit, exponent in factors if exponent < 0)]
    powers: Counter[str] = Counter()
    for unit, exponent in factors:
        powers.update({name: size * exponent for name, size in unit.dimension})
    return MeasureUnit(
        dimension=tuple(sorted((name, size) for name, size in powers.items() if size)),
        factor=math.prod((unit.factor**exponent for unit, exponent in factors), start=Fraction(1)),
    )
