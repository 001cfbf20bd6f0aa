"""Environments by kind, of this package and of others, and the fingerprint of a pool's prompts."""

import hashlib
import platform
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from covey.environments import registry
from covey.environments.base import EnvironmentSpec
from covey.environments.registry import DEMO, compute_fingerprint, load, require_same
from covey.errors import OperatorError

pytestmark = pytest.mark.unit


def test_load__the_demo__asks_for_words_of_three_to_five_letters() -> None:
    environment = load(DEMO)
    words = [environment.prompt(draw).text.rpartition(" ")[2] for draw in range(100)]
    assert {len(word) for word in words} == {3, 4, 5}


def test_load__unknown_kind__is_refused_with_a_list_of_the_known_ones() -> None:
    with pytest.raises(OperatorError, match=r"no environment kind called 'chess'.*'mixture'.*'reasoning_gym'"):
        load(EnvironmentSpec(kind="chess"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("covey.environments.registry:load", "is not a subclass of covey.environments.base.TaskSource"),
        ("covey.environments.nowhere:Source", "could not be loaded"),
        ("covey.environments.registry:Nothing", "could not be loaded"),
    ],
)
def test_load__entry_point_that_is_not_a_task_source__is_refused(monkeypatch, value: str, message: str) -> None:
    entry = EntryPoint(name="chess", value=value, group="covey.environments")
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    with pytest.raises(OperatorError, match=message):
        load(EnvironmentSpec(kind="chess"))


def test_load__entry_point_of_another_package__is_a_kind(monkeypatch) -> None:
    value = "covey.environments.kinds.reasoning_gym.reasoning_gym:ReasoningGymSource"
    entry = EntryPoint(name="gym", value=value, group="covey.environments")
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    spec = EnvironmentSpec(kind="gym", options=DEMO.options)
    assert load(spec).prompt(5) == load(DEMO).prompt(5)


class Worded:
    """An environment whose library words the question of one draw differently."""

    def __init__(self, odd: int | None = None, target: int | None = None, **versions: str) -> None:
        self.odd, self.target, self.versions = odd, target, versions

    def identify(self, draw: int):
        return {"task": f"Frage {draw}é" + ("?" if draw == self.odd else ""), "target": self.target}


def test_compute_fingerprint__prompts_and_versions__by_hand() -> None:
    rows = ",".join(f'{{"target":null,"task":"Frage {draw}é"}}' for draw in range(32))
    text = f'{{"prompts":[{rows}],"versions":{{"sympy":"1.14.0"}}}}'
    assert compute_fingerprint(Worded(sympy="1.14.0")) == "0x" + hashlib.sha256(text.encode()).hexdigest()


def test_compute_fingerprint__another_text_target_version_or_generator__differs() -> None:
    others = (Worded(), Worded(0), Worded(31), Worded(target=5), Worded(sympy="1"), load(DEMO))
    prints = [compute_fingerprint(each) for each in others]
    assert len(set(prints)) == 6
    assert compute_fingerprint(Worded(32)) == prints[0]  # draw 32 is beyond the draws that are covered
    assert compute_fingerprint(load(DEMO)) == prints[5]


def test_require_same__same_prompts__passes() -> None:
    require_same(Worded(a="1"), versions={"a": "1"}, fingerprint=compute_fingerprint(Worded(a="1")))
    require_same(Worded(a="1"), versions={}, fingerprint=None)


def test_require_same__other_prompts__stops() -> None:
    with pytest.raises(OperatorError, match=r"environment_differs: .*fingerprint .*Install the versions"):
        require_same(Worded(7), versions={}, fingerprint=compute_fingerprint(Worded()))


def test_require_same__package_of_another_version__names_it_and_the_version_to_install() -> None:
    with pytest.raises(OperatorError, match=r"sympy is 1.13 on this machine, .* with 1.14. Install sympy==1.14"):
        require_same(Worded(sympy="1.13"), versions={"sympy": "1.14"}, fingerprint=None)
    with pytest.raises(OperatorError, match=r"sympy is not installed on this machine"):
        require_same(Worded(), versions={"sympy": "1.14"}, fingerprint=None)


def test_require_same__own_grader_of_another_version__names_the_release_and_no_package() -> None:
    math = EnvironmentSpec(kind="math", options={"dataset": "0x" + "00" * 32})
    assert load(math).versions["covey.math"] == "2"
    with pytest.raises(OperatorError, match=r"covey.math is 2 on .* with 3. Install the version of Covey"):
        require_same(load(math), versions={"covey.math": "3"}, fingerprint=None)


def test_require_same__another_interpreter__names_it() -> None:
    here = ".".join(platform.python_version_tuple()[:2])
    assert load(DEMO).versions["python"] == here
    with pytest.raises(OperatorError, match=rf"python is {here} on this machine, .* Run covey with Python 2.7"):
        require_same(load(DEMO), versions={"python": "2.7"}, fingerprint=None)


def test_import__registry_and_engine_base__load_no_heavy_library() -> None:
    heavy = "{'torch', 'transformers', 'numba', 'reasoning_gym', 'sympy'}"
    code = f"import sys, covey.environments.registry, covey.engines.base; print(sorted({heavy} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert process.stdout == "[]\n"
