import ast
import re
from pathlib import Path

import pytest

from tests.reference import make
from tests.reference.advice import ADVICE
from tests.reference.codes import CLASSES, PACKAGES, ROOT, find_raises

pytestmark = pytest.mark.unit

TESTS = Path(__file__).resolve().parents[1]
PASSING = {
    "coordinator/api/error_answers.py",
    "covey/protocol/peer_json.py",
    "covey/chain/sender.py",
    "covey/cli/up_down.py",
    "covey/runtime/child_processes.py",
    "covey/network/coordinator_answers.py",
    "covey/engines/vllm/engine.py",
    "covey/engines/vllm/engine_process.py",
    "covey/sandbox/zygote_process.py",
    "covey/local/ports.py",
    "covey/tasks/importing.py",
    "trainer/monitoring/evaluation.py",
    "worker/loop.py",
    "worker/receipts.py",
}
"""Files that raise an error of another process or layer again, with its code."""


def find(code):
    return [each for each in find_raises()[0] if each.code == code]


@pytest.mark.parametrize(
    "build",
    [
        make.build_settings,
        make.build_commands,
        make.build_errors,
        make.build_metrics,
        make.build_environments,
        make.build_api,
    ],
)
def test_page__is_what_the_code_says(build):
    page = make.FOLDER / f"{build.__name__.removeprefix('build_')}.md"
    assert page.read_text() == build(), f"{page.name} is stale: run make reference"


def test_monitor__table_of_alarms__is_what_the_code_says():
    guide = make.MONITOR.read_text()
    assert guide.count(make.ALARMS_MARK) == guide.count(make.END_MARK) == 1
    assert guide == make.fill_alarms(guide), f"{make.MONITOR.name} is stale: run make reference"


def test_codes__all_that_tests_and_sources_compare__are_found():
    files = [*TESTS.rglob("*.py"), *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))]
    awaited = {
        code: path.name
        for path in files
        if "benchmarks" not in path.parts
        for code in re.findall(r'\.code [!=]= "(\w+)"', path.read_text())
    }
    assert len(awaited) > 40
    known = {each.code for each in find_raises()[0]}
    assert {code: name for code, name in awaited.items() if code not in known} == {}


def test_codes__passed_on__only_where_known():
    assert set(find_raises()[1]) == PASSING


def test_classes__are_all_that_errors_have__and_a_subclass_names_its_code_itself():
    """A subclass without `__init__` would be raised with a code that `codes` does not find."""
    direct, wrong = set(), []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            bases = {ast.unparse(base) for base in getattr(node, "bases", [])}
            if "CoveyError" in bases:
                direct.add(node.name)
            elif bases & set(CLASSES) and "__init__" not in {getattr(each, "name", "") for each in node.body}:
                wrong.append(node.name)
    assert (direct, wrong) == (set(CLASSES) - {"ErrorBody"}, [])


def test_advice__is_about_codes_that_exist():
    assert set(ADVICE) <= {each.code for each in find_raises()[0]}


def test_codes__every_one__is_told_or_has_advice():
    silent = {each.code for each in find_raises()[0] if each.is_quoted and not each.fix} - set(ADVICE)
    assert {code for code in silent if all(each.is_quoted for each in find(code))} == set()


def test_raise__with_literals__message_fix_and_class():
    (found,) = find("key_exists")
    assert (found.kind, found.message, found.fix) == (
        "operator",
        "the key file {path} already exists",
        "Choose a new file",
    )


def test_raise__code_as_a_parameter__each_caller_with_its_own_message():
    """`signing._refuse(code, message)`."""
    (found,) = find("unsigned")
    assert (found.kind, found.message, found.status) == (
        "refused",
        "the request lacks a header: signature-input, signature or content-digest",
        401,
    )


def test_raise__code_in_a_variable__both_of_its_values():
    """`code = "equivocation" if ... else "duplicate_submission"`."""
    message = "another receipt was given for this lease"
    assert message in {each.message for each in find("equivocation")}
    assert message in {each.message for each in find("duplicate_submission")}


def test_raise__code_from_a_table__and_its_default():
    """`codes.get(error.status_code, "bad_request")` of the API."""
    assert find("method_not_allowed")
    assert find("bad_request")


def test_raise__by_a_subclass__has_the_code_of_its_super():
    assert "the signature is valid from {created} to {expires}, but the time here is {now}" in {
        e.message for e in find("expired_request")
    }
    assert any(each.is_quoted for each in find("expired_request"))  # client._ClockError, with the coordinator's text


def test_raise__body_of_an_http_error__waits_for_503():
    assert {(each.kind, each.status) for each in find("unavailable")} == {("wait", 503)}
