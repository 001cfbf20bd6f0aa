"""The environment of docs/guides/write-an-environment.md, extracted from the page and installed as a package."""

import json
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from covey.environments.base import EnvironmentSpec
from covey.environments.registry import GROUP, load, require_same
from covey.errors import OperatorError
from tests.e2e.fences import read_fences

pytestmark = pytest.mark.unit

PAGE = Path(__file__).parents[4] / "docs/guides/write-an-environment.md"


def read_page() -> tuple[str, dict, dict]:
    """Return the page's module, its pyproject.toml and its part of pool.toml."""
    bodies = {}
    for fence in read_fences(PAGE):
        bodies.setdefault(fence.language, []).append(fence.body)
    (code,), (project, pool) = bodies["python"], bodies["toml"]
    return code, tomllib.loads(project), tomllib.loads(pool)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code, document, pool = read_page()
    project = document["project"]
    (tmp_path / "roman_numerals").mkdir()
    (tmp_path / "roman_numerals/__init__.py").write_text(code)
    info = tmp_path / "roman_numerals-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    entries = "".join(f"{name} = {value}\n" for name, value in project["entry-points"][GROUP].items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entries}")
    monkeypatch.syspath_prepend(tmp_path)
    named = pool["params"]["environment"]
    yield load(EnvironmentSpec(kind=named["kind"], options=named["options"]))
    sys.modules.pop("roman_numerals", None)


def test_page__code_is_short_and_complete():
    code, project, pool = read_page()
    assert 20 < len(code.splitlines()) <= 40
    assert project["project"]["entry-points"][GROUP] == {"roman": "roman_numerals:RomanSource"}
    assert EntryPoint(name="roman", value="roman_numerals:RomanSource", group=GROUP).module == "roman_numerals"
    assert pool["params"]["environment"]["kind"] == "roman"


def test_page__environment__draws_and_holds_out_other_questions(environment):
    drawn = [environment.prompt(draw) for draw in range(500)]
    assert drawn[3] == environment.prompt(3)
    assert drawn[0].text.endswith("as a Roman numeral.\nWrite the numeral between <answer> and </answer>.")
    held_out = environment.held_out(40)
    assert len({prompt.text for prompt in held_out}) == 40
    assert not {prompt.text for prompt in held_out} & {prompt.text for prompt in drawn}
    json.dumps([prompt.verification for prompt in drawn])


@pytest.mark.parametrize(
    ("number", "numeral"),
    [(1, "I"), (4, "IV"), (9, "IX"), (40, "XL"), (1994, "MCMXCIV"), (2026, "MMXXVI"), (3888, "MMMDCCCLXXXVIII")],
)
def test_page__environment__knows_numerals(environment, number, numeral):
    task = sys.modules["roman_numerals"].build_task(number)
    assert task.verification == {"numeral": numeral}


def test_page__environment__grades(environment):
    prompt = environment.prompt(11)
    numeral = prompt.verification["numeral"]
    answers = {f"It is <answer>{numeral}</answer>": 1.0, f"<answer> {numeral} </answer>": 1.0, numeral: 0.0, "": 0.0}
    answers["<answer>0</answer>"] = 0.0
    for text, reward in answers.items():
        assert environment.grade(prompt.build_reply(text, finished=True, tokens=9)).reward == reward, text


def test_page__environment__is_graded_with_its_own_package(environment):
    assert environment.grading_python.packages == ("roman_numerals",)
    assert environment.grading_python.interpreter is None


def test_page__environment__refuses_unknown_options(environment):
    with pytest.raises(OperatorError, match=r"bad_environment: unknown options \['bases'\]"):
        load(EnvironmentSpec(kind="roman", options={"bases": 3}))


def test_page__package_of_another_version__stops_and_says_what_to_install(environment):
    project = read_page()[1]["project"]
    name, version = project["name"], project["version"]
    assert environment.versions[name] == version
    require_same(environment, versions={name: version}, fingerprint=None)
    with pytest.raises(OperatorError, match=rf"{name} is {version} on this machine.*Install {name}==99"):
        require_same(environment, versions={name: "99"}, fingerprint=None)
