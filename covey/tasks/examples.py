"""Example tasks drawn from templates, in the columns of published data sets, for trying an import and for tests.

Answers are correct by construction, and no two prompts are equal. Equal counts and seeds produce equal rows.
"""

import json
from collections.abc import Callable, Sequence
from random import Random

from covey.errors import OperatorError
from covey.tasks.example_programs import PROGRAMS, ExampleProgram
from covey.tasks.example_questions import QUESTIONS, Example, Template

REPEATS = 200
"""Number of consecutive repeated prompts after which a template counts as exhausted."""


def _write(template: Callable[[Random], ExampleProgram]) -> Template:
    def build(rng: Random) -> Example:
        program = template(rng)
        cases: dict[str, object] = {"inputs": program.inputs, "outputs": program.outputs}
        cases |= {"fn_name": program.fn_name} if program.fn_name else {}
        return Example(
            task_type="verifiable_code",
            prompt=program.prompt,
            info={"test_cases": json.dumps(cases)},
            solution=program.solution,
        )

    return build


TEMPLATES: Sequence[Template] = (*QUESTIONS, *map(_write, PROGRAMS))


def build_rows(count: int, *, seed: int = 0) -> list[dict[str, str]]:
    """Draw `count` rows in the columns of published data sets, from each template in turn.

    `verification_info` is JSON text, and rows of type verifiable_code have a column `reference_solution`. Raises
    OperatorError("too_many_rows") if the templates have fewer different questions.
    """
    rng, seen = Random(seed), set[str]()
    templates, rows = list(TEMPLATES), list[dict[str, str]]()
    while len(rows) < count:
        for template in tuple(templates):
            example = _draw_new(template, rng, seen)
            if example is None:
                templates.remove(template)
                continue
            seen.add(example.prompt)
            rows.append(_build_row(len(rows), seed, example))
        if not templates:
            raise OperatorError(
                "too_many_rows",
                f"{count} rows were requested, but the templates can create only {len(rows)} different ones",
                fix="Lower --rows",
            )
    return rows[:count]


def _draw_new(template: Template, rng: Random, seen: set[str]) -> Example | None:
    for _ in range(REPEATS):
        example = template(rng)
        if example.prompt not in seen:
            return example
    return None


def _build_row(number: int, seed: int, example: Example) -> dict[str, str]:
    row = {
        "problem_id": f"example-{seed}-{number}",
        "task_type": example.task_type,
        "prompt": example.prompt,
        "verification_info": json.dumps(example.info),
    }
    return row if example.solution is None else row | {"reference_solution": example.solution}
