"""Text to tokens and back with the byte tokenizer, where every token can be named by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.model.text import decode_completion, encode_prompt
from covey.model.tiny import build_tokenizer

pytestmark = pytest.mark.unit

PAD, EOS, BOS = 0, 1, 2
TOKENIZER = build_tokenizer()


def byte_token(byte: int) -> int:
    """The GPT-2 byte alphabet in code-point order: printable bytes stand for themselves, the others follow."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [each for each in range(256) if each not in printable]
    return 3 + [*printable, *others].index(byte)


def test_encode_prompt__a_question__is_bos_bytes_and_newline() -> None:
    assert encode_prompt(TOKENIZER, "sun?") == [BOS, *map(byte_token, b"sun?\n")]


@given(st.text(alphabet=st.characters(exclude_characters="<>", exclude_categories=["Cs"]), max_size=40))
def test_encode_prompt__any_text__is_its_utf8_bytes(text: str) -> None:
    assert encode_prompt(TOKENIZER, text) == [BOS, *map(byte_token, text.encode()), byte_token(10)]


def test_encode_prompt__demo_question__has_53_to_55_tokens() -> None:
    lengths = [
        len(encode_prompt(TOKENIZER, f"Spell this word backward (example: sun -> nus): {w}")) for w in ("abc", "abcde")
    ]
    assert lengths == [53, 55]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40), st.booleans())
def test_decode_completion__any_text__comes_back(text: str, finished: bool) -> None:
    tokens = [byte_token(each) for each in text.encode()]
    assert decode_completion(TOKENIZER, tokens + [EOS] * finished) == text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ([], ""),
        ([EOS], ""),
        ([byte_token(97), EOS, EOS], "a<eos>"),
        ([byte_token(97), PAD, BOS, EOS], "a<pad><bos>"),
        ([EOS, byte_token(97)], "<eos>a"),
        ([byte_token(0xFF), byte_token(97)], "\ufffda"),
        ([byte_token(32), byte_token(46)], " ."),
    ],
)
def test_decode_completion__special_and_broken_tokens__stay_visible(tokens: list[int], text: str) -> None:
    assert decode_completion(TOKENIZER, tokens) == text


class _NoBos:
    bos_token_id = None
    eos_token_id = 7

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [len(text)] + [0] * add_special_tokens

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return ",".join(map(str, token_ids)) + "!" * skip_special_tokens


def test_encode_prompt__tokenizer_without_bos__adds_none() -> None:
    assert encode_prompt(_NoBos(), "abc") == [4]
    assert decode_completion(_NoBos(), (3, 7)) == "3"
