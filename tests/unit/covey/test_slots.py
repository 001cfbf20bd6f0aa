"""Prompts in the pool's format, and valid ends of completions where there are several end tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.environments.base import Prompt
from covey.errors import ProtocolError
from covey.model.prompts import PromptFormat
from covey.protocol.ids import GroupId
from covey.protocol.params import ModelParams
from covey.protocol.seeding import compute_prompt_draw
from covey.protocol.submission_file.rows import Rollout
from covey.protocol.verdict import Reason
from covey.slots import draw_prompts, find_false_end
from tests.fakes.chat import build_chat_tokenizer
from tests.fakes.resuming import build_domain
from tests.fakes.tools import MANIFEST

pytestmark = pytest.mark.unit
ENDS = frozenset({0, 2})


class Numbered:
    """Environment whose prompts ask for the drawn number, with a system message for odd numbers."""

    def prompt(self, slot_hash: int) -> Prompt:
        return Prompt(text=f"Repeat {slot_hash}.", system="Be brief." if slot_hash % 2 else "", verification={})


@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}])
def test_draw_prompts__chat__equals_the_chat_template_of_transformers(variables: dict) -> None:
    tokenizer = build_chat_tokenizer()
    chosen = PromptFormat.of(ModelParams(prompt_format="chat", chat_template_kwargs=variables))
    domain = build_domain(MANIFEST, 0, 7)
    drawn = draw_prompts(domain, 16, environment=Numbered(), tokenizer=tokenizer, format=chosen, longest=200)
    assert {prompt.prompt.system for prompt in drawn.values()} == {"", "Be brief."}
    for prompt in drawn.values():
        system = [{"role": "system", "content": "Be brief."}] if prompt.prompt.system else []
        expected = tokenizer.apply_chat_template(
            [*system, {"role": "user", "content": prompt.prompt.text}],
            add_generation_prompt=True,
            return_dict=False,
            **variables,
        )
        assert prompt.tokens == tuple(expected)


class Letters:
    """Tokenizer with one token per letter."""

    bos_token_id, eos_token_id = None, 1

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]


RAW = PromptFormat.of(ModelParams())


class Growing:
    """Environment whose prompts have 1 + draw % 19 letters, and which records the draws."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def prompt(self, draw: int) -> Prompt:
        self.asked.append(draw)
        return Prompt(text="q" * (1 + draw % 19), verification={})


def test_draw_prompts__prompt_is_too_long__the_next_one_of_its_draw_replaces_it_for_every_party() -> None:
    domain, environment = build_domain(MANIFEST, 0, 7), Growing()
    drawn = draw_prompts(domain, 40, environment=environment, tokenizer=Letters(), format=RAW, longest=10)
    assert all(len(prompt.tokens) <= 10 for prompt in drawn.values())  # At most nine letters and a newline.
    draws = [compute_prompt_draw(domain, GroupId(group)) for group in range(40)]
    fitting = [group for group in range(40) if 1 + draws[group] % 19 <= 9]
    assert 8 < len(fitting) < 32
    assert all(drawn[group].prompt.text == "q" * (1 + draws[group] % 19) for group in fitting)
    assert drawn == draw_prompts(domain, 40, environment=Growing(), tokenizer=Letters(), format=RAW, longest=10)
    assert len(environment.asked) == len(set(environment.asked)) > 40


def test_draw_prompts__all_prompts_are_too_long__refused_after_32() -> None:
    environment = Growing()
    with pytest.raises(ProtocolError, match=r"prompt_too_long: all 32 prompts .* limit of 1 tokens"):
        draw_prompts(
            build_domain(MANIFEST, 0, 7), 1, environment=environment, tokenizer=Letters(), format=RAW, longest=1
        )
    assert len(environment.asked) == 32


def build_row(tokens: list[int], *, finished: bool) -> Rollout:
    return Rollout(
        group=GroupId(0), sibling=0, seed=0, prompt=(1,), tokens=tuple(tokens), logprobs=(0.0,) * len(tokens),
        proofs=(), finished=finished, reward=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "finished", "is_valid"),
    [
        ([5, 6, 0], True, True),
        ([5, 6, 2], True, True),
        ([0], True, True),
        ([5, 6, 7, 8], False, True),
        ([5, 6, 7, 2], True, True),
        ([5, 6, 7], False, False),
        ([5, 6, 1], True, False),
        ([5, 6, 2], False, False),
        ([5, 6, 7, 0], False, False),
        ([5, 6, 7, 8], True, False),
        ([0, 2], True, False),
        ([2, 0], True, False),
        ([5, 0, 7, 8], False, False),
    ],
)
def test_find_false_end__two_end_tokens__only_the_last_may_be_one(
    tokens: list[int], finished: bool, is_valid: bool
) -> None:
    rejection = find_false_end([build_row(tokens, finished=finished)], ends=ENDS, limit=4, vocabulary=9)
    assert (rejection is None) is is_valid
    assert rejection is None or rejection.reason is Reason.FALSE_TERMINATION


@given(st.lists(st.integers(0, 8), min_size=1, max_size=5), st.booleans(), st.sets(st.integers(0, 8), min_size=1))
def test_find_false_end__any_row__is_valid_if_and_only_if_sampling_gives_it(
    tokens: list[int], finished: bool, ends: set[int]
) -> None:
    sampled = []
    for token in [*tokens, *[min(ends)] * 5]:  # An engine continues until an end token or the limit.
        sampled.append(token)
        if token in ends or len(sampled) == 5:
            break
    is_valid = tokens == sampled and finished == (tokens[-1] in ends)
    rejection = find_false_end([build_row(tokens, finished=finished)], ends=ends, limit=5, vocabulary=9)
    assert (rejection is None) is is_valid
