"""The check of a chat template before a pool is created. It renders the template in a separate process."""

import pytest

from covey.errors import OperatorError
from covey.model.prompts import PromptFormat, require_stable_template
from tests.fakes.chat import CHATML, DATED, build_chat_tokenizer

pytestmark = pytest.mark.integration
CHAT = PromptFormat(kind="chat")
QUESTION = "{{ messages[-1].content }}"


@pytest.mark.parametrize(
    ("template", "variables"),
    [
        (CHATML, {}),
        (CHATML, {"enable_thinking": False}),
        (DATED, {"date_string": "26 Jul 2024"}),
    ],
)
@pytest.mark.parametrize("has_system", [False, True])
def test_require_stable_template__stable_one__returns(template: str, variables: dict, has_system: bool) -> None:
    chosen = PromptFormat(kind="chat", variables=variables)
    require_stable_template(build_chat_tokenizer(template), chosen, has_system=has_system)


@pytest.mark.parametrize(
    ("template", "code", "message"),
    [
        (DATED, "unstable_template", "line 4 of the chat template: the date"),
        (QUESTION + "{{ ['a', 'b'] | random }}", "unstable_template", "the filter random is used in line 1"),
        (QUESTION + "{{ dict }}", "unstable_template", "renders a different text in another process"),
        (QUESTION + "{{ ''.join }}", "unstable_template", "renders a different text in another process"),
        (QUESTION + "\n{% if %}", "broken_template", "line 2 of the chat template"),
        ("{{ messages[0].role }}", "broken_template", "omits the text 'How much is 2 + 3?'"),
        (QUESTION + "{{ '%0999999999d' % 1 }}", "broken_template", "MemoryError"),
        (None, "no_chat_template", "has no chat template"),
    ],
)
def test_require_stable_template__any_other__is_refused(template: str | None, code: str, message: str) -> None:
    with pytest.raises(OperatorError, match=code) as raised:
        require_stable_template(build_chat_tokenizer(template), CHAT)
    assert message in raised.value.message


def test_require_stable_template__template_that_refuses_system_texts__depends_on_the_pool() -> None:
    tokenizer = build_chat_tokenizer(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + QUESTION
    )
    require_stable_template(tokenizer, CHAT)
    with pytest.raises(OperatorError, match="broken_template: line 1 of the chat template: no system role"):
        require_stable_template(tokenizer, CHAT, has_system=True)


def test_require_stable_template__system_text_left_out__is_refused() -> None:
    with pytest.raises(OperatorError, match=r"broken_template: .*omits the text 'Answer"):
        require_stable_template(build_chat_tokenizer(QUESTION), CHAT, has_system=True)


def test_require_stable_template__slow_without_steps__ends_at_the_deadline() -> None:
    tokenizer = build_chat_tokenizer("{% for a in range(9999) %}{{ range(100000) | list | length }}{% endfor %}")
    with pytest.raises(OperatorError, match=r"broken_template: .*was not rendered within 0\.5 s"):
        require_stable_template(tokenizer, CHAT, seconds=0.5)


@pytest.mark.parametrize("ending", ["<think>", "<think>\n"])
def test_require_stable_template__thought_that_the_prompt_opens__must_be_required_to_end(ending: str) -> None:
    tokenizer = build_chat_tokenizer(QUESTION + ending)
    require_stable_template(tokenizer, CHAT, unopened=["<reason>"])
    with pytest.raises(OperatorError, match=r"thought_opened: .*thinking_required = true"):
        require_stable_template(tokenizer, CHAT, unopened=["<think>"])
