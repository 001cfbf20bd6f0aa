"""A taskset of verifiers 0.4 in the Python of `make verifiers`: tasks, refusals and grades."""

import json
from pathlib import Path

import pytest

from covey.environments import registry
from covey.environments.base import Environment
from covey.environments.grader import GradingPool
from covey.environments.kinds.verifiers.verifiers_process import TasksetRequest, ask_tasks, ask_versions
from covey.errors import OperatorError
from covey.protocol.params import GradingParams
from covey.runtime.settings import SandboxSettings
from covey.sandbox import find_isolation
from tests.integration.environments.verifiers_taskset import DATA_HASH, FOLDER, build_spec, require_interpreter

pytestmark = [pytest.mark.integration, pytest.mark.full]

CASES = [json.loads(line) for line in (FOLDER.parent / "grading/verifiers.jsonl").read_text().splitlines()]
SYSTEM = "Write the result between <answer> tags."
TASKSET = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    pass

class OwnTask(vf.Task[Data]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return 1.0
{body}

class OwnTaskset(vf.Taskset[OwnTask, vf.TasksetConfig]):
    INFINITE = {infinite}
    def load(self):
        print("a taskset may print")
        yield OwnTask(Data(prompt={prompt}), self.config.task)
{tail}

__all__ = ["OwnTaskset"]
"""
REFUSED = {
    "runtime": ("    @vf.reward\n    async def run(self, runtime) -> float:\n        return 0.0", "run need a runtime"),
    "setup": ("    async def setup(self, trace, runtime):\n        pass", "need a runtime for setup"),
    "container": ("    NEEDS_CONTAINER = True", "need a runtime for a container"),
    "tools": ("    @classmethod\n    def toolsets(cls, config):\n        return []", "tools, which need several turns"),
    "intercept": (
        "    @vf.intercept\n    async def shorten(self, request: vf.Request) -> None:\n        pass",
        "rewrite messages",
    ),
}


@pytest.fixture(scope="module")
def python() -> Path:
    return require_interpreter()


@pytest.fixture(autouse=True)
def _see_taskset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))


@pytest.fixture(scope="module")
def loaded(python: Path) -> Environment:
    """The environment with its tasks. Loading them imports verifiers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FOLDER))
        environment = registry.load(build_spec())
        environment.prompt(0)
    return environment


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, **values: object) -> TasksetRequest:
    """Write a package with a taskset of one task."""
    parts = {"body": "", "infinite": False, "prompt": "'What?'", "tail": ""} | values
    (folder / "own_tasks.py").write_text(TASKSET.format(**parts))
    info = folder / "own_tasks-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-tasks\nVersion: 2.0\n")
    (info / "top_level.txt").write_text("own_tasks\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return TasksetRequest(taskset="own-tasks", config={}, tasks=None)


def test_cases__are_sixty_with_every_reward():
    assert len(CASES) == 60
    assert {case["reward"] for case in CASES} == {0.0, 0.25, 0.75, 1.0}
    assert {case["task"] for case in CASES} == set(range(24))


def test_versions__are_those_of_verifiers_and_the_taskset(loaded):
    assert loaded.versions["verifiers"].startswith("0.4.")
    assert loaded.versions["arithmetic-tasks"] == "1.0"


def test_prompt__has_the_system_text_and_the_data_of_its_task(loaded):
    prompts = [loaded.prompt(draw) for draw in range(300)]
    assert {prompt.system for prompt in prompts} == {SYSTEM}
    assert loaded.identify(5)["system"] == SYSTEM
    # By zlib.crc32 of each question, only task 8 is held out.
    assert [prompt.text for prompt in loaded.held_out(1)] == ["What is 10 * 8?"]
    assert {prompt.verification["task"]["idx"] for prompt in prompts} == set(range(24)) - {8}
    assert loaded.held_out(2) == loaded.held_out(1)


def test_grade__labelled_answers_in_the_sandbox__have_their_rewards(loaded, python):
    find_isolation()
    tasks = {prompt.verification["task"]["idx"]: prompt for prompt in map(loaded.prompt, range(300))}
    tasks[8] = loaded.held_out(1)[0]
    replies = [tasks[case["task"]].build_reply(case["answer"], finished=True, tokens=5) for case in CASES]
    with GradingPool(build_spec(), loaded, GradingParams(), SandboxSettings(grading_processes=1)) as grade:
        grades = grade(replies)
    assert [(found.reward, found.limit) for found in grades] == [(case["reward"], "") for case in CASES]


def test_load__another_data_hash__names_both(python):
    environment = registry.load(build_spec(data_hash="0x12"))
    with pytest.raises(OperatorError, match=rf"wrong_dataset: .*{DATA_HASH} on this machine, .* names 0x12"):
        environment.prompt(0)


def test_load__another_config__has_another_data_hash(python):
    environment = registry.load(build_spec(config={"first": 1}))
    with pytest.raises(OperatorError, match="wrong_dataset"):
        environment.prompt(0)


def test_load__config_of_no_setting__is_refused(python):
    environment = registry.load(build_spec(config={"second": 1}))
    with pytest.raises(OperatorError, match=r"(?s)bad_taskset: .*second"):
        environment.prompt(0)


def test_load__part_of_the_tasks_and_named_held_out_ones(python):
    request = TasksetRequest(taskset="arithmetic-tasks", config={}, tasks=3)
    found = ask_tasks(python, request)
    assert [row.question for row in found.rows] == ["What is 2 + 0?", "What is 3 - 1?", "What is 4 * 2?"]
    environment = registry.load(build_spec(data_hash=found.data_hash, tasks=3, held_out=[1]))
    assert [prompt.text for prompt in environment.held_out(1)] == ["What is 3 - 1?"]
    assert {environment.prompt(draw).text for draw in range(40)} == {"What is 2 + 0?", "What is 4 * 2?"}


def test_versions__taskset_that_is_not_installed__says_so(python):
    for name in ("nowhere", "json"):
        with pytest.raises(OperatorError, match=f"no_taskset: .*{name}.*Install the taskset's package"):
            ask_versions(python, TasksetRequest(taskset=name, config={}, tasks=None))


@pytest.mark.parametrize("name", REFUSED)
def test_load__taskset_that_needs_more_than_a_text__is_refused(python, tmp_path, monkeypatch, name):
    body, message = REFUSED[name]
    request = install(tmp_path, monkeypatch, body=body)
    with pytest.raises(OperatorError, match=f"bad_taskset: .*{message}"):
        ask_tasks(python, request)


def test_load__infinite_taskset__needs_a_number(python, tmp_path, monkeypatch):
    request = install(tmp_path, monkeypatch, infinite=True)
    with pytest.raises(OperatorError, match=r"bad_taskset: .*infinite, but the option tasks is not set"):
        ask_tasks(python, request)


def test_load__conversation__is_refused(python, tmp_path, monkeypatch):
    turns = "[vf.UserMessage(content='a'), vf.AssistantMessage(content='b'), vf.UserMessage(content='c')]"
    request = install(tmp_path, monkeypatch, prompt=turns)
    with pytest.raises(OperatorError, match=r"bad_taskset: .*not a single user message with text"):
        ask_tasks(python, request)


def test_load__taskset_that_raises__is_refused_with_its_words(python, tmp_path, monkeypatch):
    request = install(tmp_path, monkeypatch, tail="        raise RuntimeError('no such split')")
    with pytest.raises(OperatorError, match=r"bad_taskset: .*no such split"):
        ask_tasks(python, request)
