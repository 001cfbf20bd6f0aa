"""Small programming tasks as examples, each with hidden tests and a reference solution that passes them.

Expected outputs are computed here in Python. The reference solution is written separately, like a model's program.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

CASES = 12
"""Number of hidden tests per task."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleProgram:
    """One programming task with its tests and a solution."""

    prompt: str
    """Text of the task."""
    inputs: list[object]
    """Standard input of each test, or the list of arguments if the test calls a function."""
    outputs: list[object]
    """Expected standard output of each test, or the expected result of the function."""
    fn_name: str | None = None
    """Name of the function to call. None if the program reads standard input."""
    solution: str
    """Source of a program that passes all tests."""


def _build_script(prompt: str, cases: Sequence[tuple[str, object]], solution: str) -> ExampleProgram:
    text = f"Write a Python program. {prompt}"
    inputs, outputs = [f"{line}\n" for line, _ in cases], [f"{result}\n" for _, result in cases]
    return ExampleProgram(prompt=text, inputs=[*inputs], outputs=[*outputs], solution=solution)


def _build_function(
    name: str, prompt: str, cases: Sequence[tuple[list[object], object]], solution: str
) -> ExampleProgram:
    text = f"Write a Python function {name}. {prompt}"
    inputs, outputs = [arguments for arguments, _ in cases], [result for _, result in cases]
    return ExampleProgram(prompt=text, inputs=[*inputs], outputs=outputs, fn_name=name, solution=solution)


def _draw_numbers(rng: Random) -> list[int]:
    return [rng.randint(-99, 99) for _ in range(rng.randint(1, 12))]


def _draw_text(rng: Random) -> str:
    return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(1, 12)))


def _join(values: Sequence[object]) -> str:
    return " ".join(map(str, values))


def _sum_of_multiples(rng: Random) -> ExampleProgram:
    factor, start = rng.randint(2, 40), rng.choice((0, 1, 10, 100, 1000))
    lists = [_draw_numbers(rng) for _ in range(CASES)]
    cases = [(_join(each), start + sum(number for number in each if number % factor == 0)) for each in lists]
    prompt = (
        "It reads one line of integers, separated by spaces, and prints"
        f" {start} plus the sum of those that are multiples of {factor}."
    )
    solution = (
        f"total = {start}\nfor word in input().split():\n    if int(word) % {factor} == 0:\n"
        "        total += int(word)\nprint(total)\n"
    )
    return _build_script(prompt, cases, solution)


def _shift_letters(rng: Random) -> ExampleProgram:
    shift, times = rng.randint(1, 25), rng.randint(1, 6)
    total = shift * times
    texts = [_draw_text(rng) for _ in range(CASES)]
    cases = [(text, "".join(_LETTERS[(_LETTERS.index(c) + total) % 26] for c in text)) for text in texts]
    prompt = (
        f"It reads a word of small letters and moves each letter {shift} places on in the alphabet, from z to a,"
        f" {times} times in a row. It prints the result."
    )
    solution = (
        f"word = input().strip()\nfor _ in range({times}):\n"
        f"    word = ''.join(chr((ord(c) - 97 + {shift}) % 26 + 97) for c in word)\nprint(word)\n"
    )
    return _build_script(prompt, cases, solution)


def _count_above(rng: Random) -> ExampleProgram:
    low, high = sorted(rng.sample(range(-60, 60), 2))
    lists = [_draw_numbers(rng) for _ in range(CASES)]
    cases = [(_join(each), sum(low < number < high for number in each)) for each in lists]
    prompt = f"It reads one line of integers and prints how many of them are above {low} and below {high}."
    solution = f"numbers = map(int, input().split())\nprint(len([n for n in numbers if n > {low} and n < {high}]))\n"
    return _build_script(prompt, cases, solution)


def _digit_sum(rng: Random) -> ExampleProgram:
    base, power = rng.randint(2, 30), rng.randint(1, 4)
    numbers = [rng.randint(0, 10**6) for _ in range(CASES)]

    def compute(number: int) -> int:
        return 0 if number == 0 else (number % base) ** power + compute(number // base)

    cases = [(str(number), compute(number)) for number in numbers]
    prompt = (
        f"It reads an integer of 0 or more and prints the sum of its digits in base {base},"
        f" each raised to the power {power}."
    )
    solution = (
        f"n = int(input())\ntotal = 0\nwhile n:\n    n, digit = divmod(n, {base})\n"
        f"    total += digit ** {power}\nprint(total)\n"
    )
    return _build_script(prompt, cases, solution)


def _window_sums(rng: Random) -> ExampleProgram:
    size, factor = rng.randint(2, 9), rng.randint(1, 9)
    lists = [_draw_numbers(rng) for _ in range(CASES)]
    cases: list[tuple[list[object], object]] = [
        ([each], [factor * sum(each[i : i + size]) for i in range(len(each) - size + 1)]) for each in lists
    ]
    prompt = (
        f"It takes a list of integers and returns the list of {factor} times the sum of each {size} neighbours,"
        " from left to right."
    )
    solution = (
        f"def window_sums(numbers):\n    result = []\n    for end in range({size}, len(numbers) + 1):\n"
        f"        result.append({factor} * sum(numbers[end - {size}:end]))\n    return result\n"
    )
    return _build_function("window_sums", prompt, cases, solution)


def _keep_words(rng: Random) -> ExampleProgram:
    least, letter = rng.randint(2, 8), rng.choice(_LETTERS)
    texts = [[_draw_text(rng) for _ in range(rng.randint(1, 8))] for _ in range(CASES)]
    cases: list[tuple[list[object], object]] = [
        ([words], [word for word in words if len(word) >= least and letter not in word]) for words in texts
    ]
    prompt = (
        f"It takes a list of words and returns those with at least {least} letters that do not contain the letter"
        f" {letter}, in their order."
    )
    solution = (
        f"def keep_words(words):\n    return [w for w in words if len(w) > {least - 1} and w.count('{letter}') == 0]\n"
    )
    return _build_function("keep_words", prompt, cases, solution)


def _clip(rng: Random) -> ExampleProgram:
    low, high = sorted(rng.sample(range(-80, 80), 2))
    lists = [_draw_numbers(rng) for _ in range(CASES)]
    cases: list[tuple[list[object], object]] = [
        ([each], [min(max(number, low), high) for number in each]) for each in lists
    ]
    prompt = (
        f"It takes a list of integers and returns it with every number below {low} raised to {low} and every number"
        f" above {high} lowered to {high}."
    )
    solution = (
        f"def clip(numbers):\n    return [{low} if n < {low} else {high} if n > {high} else n for n in numbers]\n"
    )
    return _build_function("clip", prompt, cases, solution)


def _most_common(rng: Random) -> ExampleProgram:
    place, modulus = rng.randint(1, 3), rng.randint(3, 30)
    lists = [_draw_numbers(rng) for _ in range(CASES)]

    def compute(numbers: list[int]) -> int | None:
        counts = Counter(number % modulus for number in numbers)
        ordered = sorted(counts, key=lambda value: (-counts[value], value))
        return ordered[place - 1] if len(ordered) >= place else None

    cases: list[tuple[list[object], object]] = [([each], compute(each)) for each in lists]
    prompt = (
        f"It takes a list of integers and returns the remainder by {modulus} that is number {place} in frequency among"
        " all remainders, the smaller one first where two are equally frequent. Without such a remainder it returns"
        " None."
    )
    solution = (
        f"def common_remainder(numbers):\n    rest = [n % {modulus} for n in numbers]\n"
        "    ranked = sorted(set(rest), key=lambda r: (-rest.count(r), r))\n"
        f"    return ranked[{place - 1}] if len(ranked) > {place - 1} else None\n"
    )
    return _build_function("common_remainder", prompt, cases, solution)


PROGRAMS: Sequence[Callable[[Random], ExampleProgram]] = (
    _sum_of_multiples,
    _shift_letters,
    _count_above,
    _digit_sum,
    _window_sums,
    _keep_words,
    _clip,
    _most_common,
)
"""Templates of programming tasks. Each call draws a new task."""
