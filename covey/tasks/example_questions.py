"""Templates of example questions whose answers are strings. Each call draws a question with its correct answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb, gcd
from random import Random

_NAMES = ("Ada", "Ben", "Chloe", "Dev", "Elif", "Femi", "Greta", "Hugo", "Iris", "Jonas", "Kira", "Liam")
_THINGS = ("apples", "marbles", "stickers", "books", "coins", "postcards", "shells", "pencils")


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One question with the data that grades its answers."""

    task_type: str
    """Task type, as published data sets name it. Example: "verifiable_math"."""
    prompt: str
    """Text of the question."""
    info: Mapping[str, object]
    """Content of the column `verification_info`."""
    solution: str | None = None
    """Source of a program that passes all tests of a programming task. None for other tasks."""


Template = Callable[[Random], Example]


def _math(prompt: str, truth: object) -> Example:
    return Example(task_type="verifiable_math", prompt=prompt, info={"ground_truth": str(truth)})


def _buy_and_give(rng: Random) -> Example:
    name, other = rng.sample(_NAMES, 2)
    have, more, given = rng.randint(20, 90), rng.randint(5, 60), rng.randint(2, 20)
    thing = rng.choice(_THINGS)
    prompt = (
        f"{name} has {have} {thing}, buys {more} more and gives {given} to {other}. How many {thing} does {name} have?"
    )
    return _math(prompt, have + more - given)


def _boxes(rng: Random) -> Example:
    size, boxes, left = rng.randint(3, 24), rng.randint(2, 40), rng.randint(1, 20)
    thing = rng.choice(_THINGS)
    prompt = f"A shop packs {thing} into {boxes} boxes of {size} each and has {left} left. How many {thing} were there?"
    return _math(prompt, size * boxes + left)


def _travel(rng: Random) -> Example:
    speed, hours = rng.randint(4, 120), rng.randint(2, 12)
    return _math(
        f"A train covers {speed * hours} km in {hours} hours at a steady speed. What is its speed in km/h?", speed
    )


def _discount(rng: Random) -> Example:
    price, percent = 20 * rng.randint(2, 60), 5 * rng.randint(1, 15)
    prompt = f"A coat costs {price} euros. Its price is lowered by {percent} percent. What does it cost now, in euros?"
    return _math(prompt, price - price * percent // 100)


def _ages(rng: Random) -> Example:
    young, gap, years = rng.randint(3, 30), rng.randint(2, 30), rng.randint(1, 15)
    name, other = rng.sample(_NAMES, 2)
    prompt = (
        f"{name} is {gap} years older than {other}. In {years} years their ages add up to {2 * (young + years) + gap}."
        f" How old is {other} now?"
    )
    return _math(prompt, young)


def _linear(rng: Random) -> Example:
    root, factor, shift = rng.randint(-20, 20), rng.randint(2, 15), rng.randint(-40, 40)
    return _math(f"Solve for x: {factor}x {_signed(shift)} = {factor * root + shift}.", root)


def _two_unknowns(rng: Random) -> Example:
    x, y = rng.randint(-12, 12), rng.randint(-12, 12)
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    prompt = f"Given x + y = {x + y} and {a}x {_signed(-b)}y = {a * x - b * y}, what is x?"
    return _math(prompt, x)


def _quadratic(rng: Random) -> Example:
    small, gap = rng.randint(-15, 10), rng.randint(1, 15)
    large = small + gap
    prompt = f"What is the larger solution of x^2 {_signed(-small - large)}x {_signed(small * large)} = 0?"
    return _math(prompt, large)


def _fractions(rng: Random) -> Example:
    left, right = (Fraction(rng.randint(1, 19), rng.randint(2, 20)) for _ in range(2))
    total = left + right
    return _math(f"What is {left} + {right}? Give an exact fraction or integer in lowest terms.", total)


def _divisor(rng: Random) -> Example:
    common, left, right = rng.randint(2, 30), rng.randint(2, 40), rng.randint(2, 40)
    return _math(
        f"What is the greatest common divisor of {common * left} and {common * right}?",
        gcd(common * left, common * right),
    )


def _committee(rng: Random) -> Example:
    people = rng.randint(5, 30)
    chosen = rng.randint(2, 4)
    return _math(f"In how many ways can a committee of {chosen} be chosen from {people} people?", comb(people, chosen))


def _series(rng: Random) -> Example:
    first, step, count = rng.randint(1, 30), rng.randint(2, 15), rng.randint(5, 60)
    prompt = (
        f"An arithmetic sequence begins with {first}, {first + step}, {first + 2 * step}."
        f" What is the sum of its first {count} terms?"
    )
    return _math(prompt, count * (2 * first + (count - 1) * step) // 2)


def _remainder(rng: Random) -> Example:
    base, power, modulus = rng.randint(2, 12), rng.randint(10, 99), rng.randint(3, 29)
    return _math(f"What is the remainder of {base}^{power} divided by {modulus}?", pow(base, power, modulus))


def _choose_prime(rng: Random) -> Example:
    prime = rng.choice([number for number in range(100, 500) if _is_prime(number)])
    wrong = rng.sample([number for number in range(101, 500, 2) if not _is_prime(number)], 3)
    return _choice(rng, "Which of these numbers is prime?", prime, wrong)


def _choose_largest(rng: Random) -> Example:
    pool = {Fraction(rng.randint(1, 19), rng.randint(2, 20)) for _ in range(12)}
    values = rng.sample(sorted(pool), 4)
    largest = max(values)
    return _choice(
        rng, "Which of these fractions is the largest?", largest, [each for each in values if each != largest]
    )


def _choose_multiple(rng: Random) -> Example:
    factor = rng.randint(3, 25)
    right = factor * rng.randint(5, 40)
    wrong = rng.sample([number for number in range(20, 999) if number % factor], 4)
    return _choice(rng, f"Which of these numbers is a multiple of {factor}?", right, wrong)


def _choose_weekday(rng: Random) -> Example:
    days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    today, later = rng.randrange(7), rng.randint(8, 400)
    right = days[(today + later) % 7]
    wrong = rng.sample([day for day in days if day != right], 3)
    return _choice(rng, f"Today is {days[today]}. Which day is it in {later} days?", right, wrong)


def _sort_words(rng: Random) -> Example:
    words = rng.sample(_WORDS, rng.randint(3, 6))
    prompt = f"Put these words into alphabetical order, separated by single spaces: {' '.join(words)}"
    return _short(prompt, " ".join(sorted(words)))


def _reverse_word(rng: Random) -> Example:
    left, right = rng.sample(_WORDS, 2)
    return _short(f"Write the word {left}{right} backwards.", (left + right)[::-1])


def _next_letter(rng: Random) -> Example:
    start, step, count = rng.randrange(26), rng.randint(1, 12), rng.randint(3, 6)
    letters = [chr(ord("a") + (start + i * step) % 26) for i in range(count + 1)]
    return _short(f"Which letter comes next, going round from z to a? {', '.join(letters[:-1])}", letters[-1])


def _count_letter(rng: Random) -> Example:
    words = rng.sample(_WORDS, rng.randint(3, 5))
    letter = rng.choice("aeiorst")
    text = " ".join(words)
    return _short(
        f'How many times does the letter {letter} stand in "{text}"? Answer in digits.', str(text.count(letter))
    )


_WORDS = (
    "amber", "basil", "candle", "desert", "ember", "forest", "garden", "harbor", "island", "jacket", "kettle",
    "lantern", "meadow", "needle", "orchard", "pepper", "quarry", "river", "saddle", "timber", "umbrella", "valley",
    "window", "yarn",
)  # fmt: skip


def _short(prompt: str, answer: str) -> Example:
    return Example(task_type="short_answer", prompt=prompt, info={"answers": [answer]})


def _choice(rng: Random, question: str, right: object, wrong: Sequence[object]) -> Example:
    """Build a multiple-choice question.

    Its prompt lists the choices, because only they distinguish it from its siblings.
    """
    choices = [str(right), *map(str, wrong)]
    rng.shuffle(choices)
    prompt = f"{question} The choices are {', '.join(choices)}."
    letter = "ABCDEFG"[choices.index(str(right))]
    return Example(task_type="multiple_choice", prompt=prompt, info={"choices": choices, "answer": letter})


def _signed(number: int) -> str:
    return f"+ {number}" if number >= 0 else f"- {-number}"


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))


QUESTIONS: Sequence[Template] = (
    _buy_and_give, _boxes, _travel, _discount, _ages, _linear, _two_unknowns, _quadratic, _fractions, _divisor,
    _committee, _series, _remainder, _choose_prime, _choose_largest, _choose_multiple, _choose_weekday, _sort_words,
    _reverse_word, _next_letter, _count_letter,
)  # fmt: skip
"""All templates of questions."""
