"""Chat templates render as in transformers, and are refused if the text could differ between machines or days."""

import json
import sys
import threading
from collections.abc import Iterator

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from covey.errors import ProtocolError
from covey.model.templates import MAX_STEPS, render_chat, render_json
from covey.runtime.recursion import RECURSION_LIMIT
from tests.fakes.chat import CHATML, DATED

pytestmark = pytest.mark.unit
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " <b>2 + 3?</b>\n"}]
VARIABLES = {"bos_token": "<s>", "enable_thinking": False, "date_string": "26 Jul 2024", "tags": ["b", "a"]}
TEMPLATES = [
    CHATML,
    DATED,
    "{% for m in messages %}\n  {{ m.content | tojson }}\n{% endfor %}",
    "{% for m in messages %}{% if loop.last %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% else %}none{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{% macro show(m) %}[{{ m.role }}]{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}",
    "{% macro box() %}({{ caller() }}){% endmacro %}{% call box() %}{{ bos_token }}{% endcall %}",
    "{% for m in messages %}{% generation %}{% set x = 1 %}{{ m.content }}{% endgeneration %}{{ x }}{% endfor %}",
    "{{ dict(a=1, b=tags) | tojson(indent=2) }}{{ tools is none }}{{ documents }}",
    "{% for t in tags | sort recursive %}{{ t }}{% endfor %}{{ undefined_name }}",
    "{{ messages | map(attribute='role') | list }}{{ messages[0] }}{{ range(3) | list }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_render_chat__any_template__equals_transformers(template: str) -> None:
    (theirs,), _ = render_jinja_template([MESSAGES], chat_template=template, add_generation_prompt=True, **VARIABLES)
    assert render_chat(template, MESSAGES, VARIABLES) == theirs


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{{ messages[0].role }}\n{{ strftime_now('%d') }}", "line 2 of the chat template: the date"),
        ("\n\n{{ ['a', 'b'] | random }}", "the chat template: the filter random is used in line 3"),
        ("{% if false %}{{ ['a', 'b'] | random }}{% endif %}", "the filter random is used in line 1"),
        ("{{ [['a', 'b']] | map('random') | list }}", "the filter random is used in line 1"),
        ("{% set f = 'random' %}{{ [['a', 'b']] | map(f) | list }}", "line 1 of the chat template: the filter random"),
        ("{{ lipsum() }}", "line 1 of the chat template: lipsum"),
    ],
)
def test_render_chat__date_or_chance__is_unstable_and_names_the_line(template: str, line: str) -> None:
    with pytest.raises(ProtocolError, match="unstable_template") as raised:
        render_chat(template, MESSAGES, VARIABLES)
    assert line in raised.value.message


def test_render_chat__only_a_test_whether_the_date_is_defined__is_accepted() -> None:
    assert render_chat("{{ strftime_now is defined }}", MESSAGES, {}) == "True"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{% if %}", "line 2 of the chat template: "),
        (
            "a\nb\n{{ raise_exception('no system text, please') }}",
            "line 3 of the chat template: no system text, please",
        ),
        ("{{ 1 + 'a' }}", "line 1 of the chat template: "),
        ("{{ 1 // 0 }}", "line 1 of the chat template: "),
        ("{{ messages[7].role }}", "line 1 of the chat template: "),
        ("{{ now() }}", "line 1 of the chat template: 'now' is undefined"),
        ("{{ messages.append(1) }}", "line 1 of the chat template: "),
        ("{{ ''.__class__.__mro__ }}", "line 1 of the chat template: "),
        ("{{ dict.__globals__.json }}", "line 1 of the chat template: "),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "line 1 of the chat template: "),
        ("{{ namespace(_a=1) }}", "line 1 of the chat template: "),
    ],
)
def test_render_chat__template_that_fails__is_broken_and_names_the_line(template: str, message: str) -> None:
    with pytest.raises(ProtocolError, match="broken_template") as raised:
        render_chat(template, MESSAGES, VARIABLES)
    assert message in raised.value.message


@pytest.fixture
def plain_recursion() -> Iterator[None]:
    """Set the recursion limit of every role. web3, which other tests import, raises it beyond the size of the stack."""
    previous = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_LIMIT)
    yield
    sys.setrecursionlimit(previous)


@pytest.mark.usefixtures("plain_recursion")
@pytest.mark.parametrize(
    "template",
    ["{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"],
)
def test_render_chat__endless_depth__is_broken(template: str) -> None:
    with pytest.raises(ProtocolError, match="broken_template"):
        render_chat(template, MESSAGES, {})


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) if false %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% macro g() %}{{ caller() }}{% endmacro %}{% macro f(n) %}{% if n %}{% call g() %}{{ f(n - 1) }}"
        "{{ f(n - 1) }}{% endcall %}{% endif %}{% endmacro %}{{ f(40) }}",
    ],
)
def test_render_chat__endless__ends_after_the_limit_of_steps(template: str) -> None:
    with pytest.raises(ProtocolError, match=f"broken_template: .*exceeds {MAX_STEPS} steps"):
        render_chat(template, MESSAGES, {})


def test_render_chat__limit_of_steps__counts_one_rendering_alone() -> None:
    longest = f"{{% for a in range({MAX_STEPS}) %}}{{% endfor %}}done"
    assert [render_chat(longest, MESSAGES, {}) for _ in range(2)] == ["done", "done"]
    texts = []
    thread = threading.Thread(target=lambda: texts.append(render_chat(longest, MESSAGES, {})))
    thread.start()
    thread.join()
    assert texts == ["done"]
    with pytest.raises(ProtocolError, match="steps"):
        render_chat(longest.replace(str(MAX_STEPS), str(MAX_STEPS + 1)), MESSAGES, {})


def test_render_json__is_the_text_in_utf8() -> None:
    arguments = {"template": "{{ messages[0].content }}é", "messages": MESSAGES, "variables": {}}
    assert render_json(json.dumps(arguments).encode()) == "Be brief.é".encode()


@pytest.mark.parametrize("text", ["{{ 9 ** (9 ** (9 ** 9)) }}", "{{ 'a' * 2000000000 }}", "{{ [1] * 2000000000 }}"])
def test_render_chat__operation_without_a_bound__is_broken(text: str) -> None:
    with pytest.raises(ProtocolError, match="is only allowed between numbers") as caught:
        render_chat(text, [], {})
    assert caught.value.code == "broken_template"
    assert render_chat("{{ 3 * 4 }}", [], {}) == "12"
