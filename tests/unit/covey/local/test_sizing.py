"""Sizes of a new pool for the tiny model, whose context is 256 tokens, and for models with other contexts."""

from pathlib import Path

import pytest

from covey.environments.base import Prompt
from covey.errors import OperatorError
from covey.local import sizing
from covey.local.plan import read_shipped_params
from covey.local.sizing import COMPLETION_TOKENS, Choice, Sizes, choose_sizes
from covey.model.tiny import tiny_folder
from covey.protocol.params import MAX_DECODED_BYTES, PoolParams
from tests.fakes.chat import CHATML, END_OF_TEXT, IM_END, write_chat_model

pytestmark = pytest.mark.unit
BASE = read_shipped_params()
ADDED = 2
"""Tokens that the tiny model adds to a raw prompt of one byte per token: the first token and the final newline."""


class FakeEnvironment:
    """Its training prompts have the given lengths in bytes in turn, and it has `count` held-out prompts."""

    def __init__(self, *lengths: int, count: int = 300) -> None:
        self._texts = [chr(ord("a") + i % 26) * length for i, length in enumerate(lengths)]
        self._count = count

    def prompt(self, draw: int) -> Prompt:
        return Prompt(text=self._texts[draw % len(self._texts)], verification={})

    def held_out(self, n: int) -> list[Prompt]:
        return [Prompt(text=self._texts[0], verification={})] * min(n, self._count)


def choose(environment: FakeEnvironment, monkeypatch: pytest.MonkeyPatch, *, context: int | None = None) -> Sizes:
    """Choose sizes for the tiny model, whose config has another context if one is given."""
    if context is not None:
        monkeypatch.setattr(sizing, "read_context", lambda _: context)
    return choose_sizes(tiny_folder(), environment, BASE)


def read_values(sizes: Sizes) -> dict[str, int]:
    return {name: choice.value for name, choice in sizes.list_choices().items()}


def build_params(sizes: Sizes) -> PoolParams:
    """Return the shipped parameters with the chosen values. They are checked as those of a pool are."""
    values = BASE.model_dump(mode="json")
    values |= {name: choice.value for name, choice in sizes.params.items()}
    values["model"] |= {name: choice.value for name, choice in sizes.model.items()}
    return PoolParams.model_validate(values)


def test_choose_sizes__tiny_model__fills_its_context(monkeypatch: pytest.MonkeyPatch):
    sizes = choose(FakeEnvironment(90, 97), monkeypatch)
    assert sizes.model["max_prompt_tokens"] == Choice(
        value=112, reason=f"the longest of 2 different questions has {97 + ADDED} tokens"
    )
    assert sizes.model["max_completion_tokens"] == Choice(
        value=144, reason="what the model's context of 256 tokens leaves"
    )
    assert {name: choice.value for name, choice in sizes.evaluation.items()} == {"prompts": 256}
    assert sizes.params == {}
    assert build_params(sizes).model.longest == 256


def test_choose_sizes__long_context__leaves_room_for_thought_and_what_depends_on_it(monkeypatch: pytest.MonkeyPatch):
    sizes = choose(FakeEnvironment(500), monkeypatch, context=40_960)
    assert read_values(sizes) == {
        "max_prompt_tokens": 512,
        "max_completion_tokens": COMPLETION_TOKENS,
        "lease_seconds": 656,  # 32 x 2048 / 100, rounded up
        "judgement_seconds": 164,  # 32 x 2560 / 500, rounded up
        "eval.prompts": 256,
    }
    assert build_params(sizes).max_task_units == 32 * 2048


def test_choose_sizes__very_long_questions__fit_into_files_that_can_be_decoded(monkeypatch: pytest.MonkeyPatch):
    sizes = choose(FakeEnvironment(1_000_000), monkeypatch, context=4_000_000)
    params = build_params(sizes)
    assert params.groups_per_task < BASE.groups_per_task
    assert BASE.groups_per_step % params.groups_per_task == 0
    assert params.needed_submission_bytes <= params.max_submission_bytes
    assert 2 * params.needed_submission_bytes <= MAX_DECODED_BYTES


def test_choose_sizes__one_long_question__is_not_asked(monkeypatch: pytest.MonkeyPatch):
    lengths = [50 + i % 40 for i in range(300)]
    sizes = choose(FakeEnvironment(*lengths, 2000), monkeypatch, context=40_960)
    prompt = sizes.model["max_prompt_tokens"]
    assert prompt.value == 96  # 89 + 2, rounded up
    assert "longer ones, up to 2002, are not asked" in prompt.reason


def test_choose_sizes__half_of_the_questions_fit__says_how_many(monkeypatch: pytest.MonkeyPatch):
    sizes = choose(FakeEnvironment(100, 150, 180, 240), monkeypatch)
    assert sizes.model["max_prompt_tokens"] == Choice(
        value=192, reason="three quarters of the model's context; 75% of 4 different questions fit"
    )
    assert sizes.model["max_completion_tokens"].value == 64


def test_choose_sizes__most_questions_do_not_fit__is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(OperatorError, match="prompts_too_long: only 33% of 3 different questions have at most 192"):
        choose(FakeEnvironment(100, 300, 400), monkeypatch)


def test_choose_sizes__chat_template__is_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sizing, "_measure_template", lambda _: 40)
    prompt = choose(FakeEnvironment(60), monkeypatch).model["max_prompt_tokens"]
    assert (prompt.value, "and the chat template adds 40" in prompt.reason) == (112, True)


TURNS = CHATML.replace(
    "{%- endfor %}",
    "    {%- if message['role'] == 'assistant' %}{{- message['content'] + '<|im_end|>' }}{%- endif %}\n{%- endfor %}",
)
"""ChatML that lays out answers, too, as the templates of published models do."""


@pytest.mark.parametrize(
    ("template", "ends", "chosen"),
    [(TURNS, (END_OF_TEXT, IM_END), "chat"), (TURNS, END_OF_TEXT, None), (None, IM_END, None)],
    ids=["chat model", "base model with a template", "no template"],
)
def test_choose_sizes__model_that_ends_answers_as_its_template_does__gets_the_chat_format(
    tmp_path: Path, template: str | None, ends: object, chosen: str | None
):
    sizes = choose_sizes(write_chat_model(tmp_path / "model", template, ends=ends), FakeEnvironment(60), BASE)
    choice = sizes.prompt_format
    assert (None if choice is None else choice.value) == chosen
    assert choice is None or "ends a turn with <|im_end|>" in choice.reason


@pytest.mark.parametrize(
    ("count", "name", "value"),
    [(5, "prompts", 5), (0, "every", 0), (256, "prompts", 256)],
)
def test_choose_sizes__few_held_out_questions__are_all_used(
    monkeypatch: pytest.MonkeyPatch, count: int, name: str, value: int
):
    sizes = choose(FakeEnvironment(60, count=count), monkeypatch)
    assert {name: choice.value for name, choice in sizes.evaluation.items()} == {name: value}
