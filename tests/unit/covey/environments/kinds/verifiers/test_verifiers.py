"""Options, splits and interpreters of the kind "verifiers", without the package."""

import sys
from pathlib import Path

import pytest

from covey.environments import registry
from covey.environments.base import EnvironmentSpec, Task
from covey.environments.kinds.verifiers import verifiers, verifiers_process
from covey.environments.kinds.verifiers.verifiers import VerifiersSource
from covey.environments.kinds.verifiers.verifiers_process import FOLDER, LoadedTaskset, TasksetRow, find_interpreter
from covey.errors import OperatorError

pytestmark = pytest.mark.unit


def refuse_sets(digest):
    raise AssertionError(digest)


def build(**options: object) -> VerifiersSource:
    return VerifiersSource({"taskset": "any-tasks", "data_hash": "0x12"} | options, refuse_sets)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch):
    """A Python that answers with the tasks a, b, c and b again. The data of each is its index."""
    requests = []

    def answer(interpreter: Path, request: object) -> LoadedTaskset:
        requests.append((interpreter, request))
        rows = [TasksetRow(data={"idx": i}, question=name, system=f"s{i}") for i, name in enumerate("abcb")]
        return LoadedTaskset(rows=rows, data_hash="0x12")

    monkeypatch.setattr(verifiers, "ask_tasks", answer)
    monkeypatch.setattr(verifiers, "find_interpreter", lambda named: named or Path("/made/python"))
    return requests


@pytest.mark.parametrize("taskset", ["", "a.b", "os.path", "owner/name", "name@1", "../x", "1a", "a b"])
def test_init__taskset_that_is_not_a_package_name__is_refused(taskset):
    with pytest.raises(OperatorError, match="bad_environment"):
        build(taskset=taskset)


@pytest.mark.parametrize(
    "text", ["/etc/passwd", "~/.ssh", "a/../b", "..", "..\\x", "https://host/x", "file://x", "m.py:f", "a/m.py"]
)
def test_init__config_with_a_path_or_a_url__is_refused(text):
    with pytest.raises(OperatorError, match="contains the path or URL"):
        build(config={"inner": [{"file": text}]})


@pytest.mark.parametrize("name", ["system_prompt", "judges", "rewards", "metrics", "stops", "fn"])
def test_init__config_that_plugs_in_code_or_a_judge__is_refused(name):
    with pytest.raises(OperatorError, match=f"sets {name}, which is not allowed in a pool"):
        build(config={"task": {name: {}}})


def test_init__names_of_data_sets_and_numbers__are_accepted():
    build(config={"dataset": "openai/gsm8k", "split": "train[:5%]", "n": 3, "ok": [True, None, 0.5]})


def test_init__unknown_option__is_refused():
    with pytest.raises(OperatorError, match=r"(?s)bad_environment: .*hash"):
        build(hash="0x")


def test_draw__tasks_by_index__without_any_held_out_question(loaded):
    source = build(held_out=[1])
    tasks = [source.draw(number) for number in range(100)]
    assert {task.question for task in tasks} == {"a", "c"}  # the second b repeats the held-out question
    assert Task(question="c", system="s2", verification={"task": {"idx": 2}}) in tasks
    assert source.held_out(1) == [Task(question="b", system="s1", verification={"task": {"idx": 1}})]
    assert {source.find_system(number) for number in range(100)} == {"s0", "s2"}
    assert len(loaded) == 1


def test_draw__held_out_by_hash__are_one_in_eight_of_the_questions(loaded):
    # zlib.crc32 of b"a", b"b" and b"c" is 0xe8b7be43, 0x71beeff9 and 0x06b9df6f: none is a multiple of 8.
    source = build()
    assert {source.draw(number).question for number in range(100)} == {"a", "b", "c"}
    assert source.held_out(1) == []


def test_held_out__same_question_twice__counts_once(loaded):
    source = build(held_out=[3, 1])
    assert [task.verification["task"] for task in source.held_out(1)] == [{"idx": 1}]
    assert source.held_out(2) == source.held_out(1)


@pytest.mark.parametrize(
    ("held_out", "message"),
    [([4], "outside the 4"), ([-1], "outside the 4"), ([0, 1, 2], "all of the 4 tasks are held out")],
)
def test_draw__held_out_that_leaves_no_task_or_is_out_of_range__is_refused(loaded, held_out, message):
    with pytest.raises(OperatorError, match=message):
        build(held_out=held_out).draw(0)


def test_draw__another_data_hash__names_both(loaded):
    with pytest.raises(OperatorError, match=r"wrong_dataset: .* 0x12 on this machine, but the pool requires 0x34"):
        build(data_hash="0x34").draw(0)
    with pytest.raises(OperatorError, match="the pool requires none"):
        build(data_hash="").draw(0)


def test_load__interpreter_of_the_settings__reaches_the_kind_and_its_graders(loaded):
    spec = EnvironmentSpec(kind="verifiers", options={"taskset": "any-tasks", "data_hash": "0x12"})
    environment = registry.load(spec, interpreters={"verifiers": Path("/named/python")})
    assert environment.prompt(0).system in {"s0", "s1", "s2", "s3"}
    assert loaded[0][0] == Path("/named/python")
    assert environment.grading_python.interpreter == Path("/named/python")
    assert environment.grading_python.packages == ("any_tasks",)
    own = registry.load(spec, interpreters={"verifiers": Path(sys.executable)})
    assert own.grading_python.interpreter is None


def test_prompt__system_prompt_of_the_pool__replaces_that_of_the_task(loaded):
    options = {"taskset": "any-tasks", "data_hash": "0x12", "system_prompt": "Be brief."}
    environment = registry.load(EnvironmentSpec(kind="verifiers", options=options))
    assert environment.prompt(0).system == "Be brief."
    assert environment.identify(0)["system"] == "Be brief."


def test_mixture__parts_with_different_pythons__cannot_be_graded(loaded):
    parts = [
        {"weight": 1, "kind": "verifiers", "options": {"taskset": "any-tasks", "data_hash": "0x12"}},
        {"weight": 1, "kind": "reasoning_gym", "options": {"name": "spell_backward"}},
    ]
    mixed = registry.load(EnvironmentSpec(kind="mixture", options={"parts": parts}))
    with pytest.raises(OperatorError, match="different Python interpreters for grading: /made/python and Covey's own"):
        _ = mixed.grading_python
    alone = registry.load(EnvironmentSpec(kind="mixture", options={"parts": parts[:1] * 2}))
    assert alone.grading_python.interpreter == Path("/made/python")
    assert alone.grading_python.packages == ("any_tasks",)


def test_find_interpreter__order__is_named_then_prepared_then_own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setattr(verifiers_process.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OperatorError, match=r"no_verifiers: .*Run make verifiers"):
        find_interpreter(None)
    with pytest.raises(OperatorError, match="no_verifiers: the setting verifiers_interpreter is /nowhere"):
        find_interpreter(Path("/nowhere"))
    monkeypatch.setattr(verifiers_process.importlib.util, "find_spec", lambda name: name)
    assert find_interpreter(None) == Path(sys.executable)
    prepared = tmp_path / FOLDER / "bin/python"
    prepared.parent.mkdir(parents=True)
    prepared.touch()
    assert find_interpreter(None) == prepared
    assert find_interpreter(Path(sys.executable)) == Path(sys.executable)
