"""Tokens become text, with the byte tokenizer, whose tokens can be named by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.model.text import decode_completion
from covey.model.tiny import build_tokenizer

pytestmark = pytest.mark.unit

PAD, EOS, BOS = 0, 1, 2
TOKENIZER = build_tokenizer()


def byte_token(byte: int) -> int:
    """Return the token of a byte in the GPT-2 byte alphabet, which has printable bytes first, in code-point order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [each for each in range(256) if each not in printable]
    return 3 + [*printable, *others].index(byte)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40), st.booleans())
def test_decode_completion__any_text__comes_back(text: str, finished: bool) -> None:
    tokens = [byte_token(each) for each in text.encode()]
    assert decode_completion(TOKENIZER, tokens + [EOS] * finished, {EOS}) == text


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
    assert decode_completion(TOKENIZER, tokens, {EOS}) == text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ([byte_token(97), EOS], "a"),
        ([byte_token(97), PAD], "a"),
        ([byte_token(97), PAD, EOS], "a<pad>"),
        ([byte_token(97), EOS, EOS], "a<eos>"),
        ([byte_token(97), BOS], "a<bos>"),
    ],
)
def test_decode_completion__two_end_tokens__removes_one_at_the_end(tokens: list[int], text: str) -> None:
    assert decode_completion(TOKENIZER, tokens, {EOS, PAD}) == text


def test_decode_completion__no_end_tokens__everything_stays() -> None:
    assert decode_completion(TOKENIZER, [byte_token(97), EOS], frozenset()) == "a<eos>"


class _Commas:
    """Fake tokenizer whose text is the token ids. An exclamation mark shows that special tokens were skipped."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return ",".join(map(str, token_ids)) + "!" * skip_special_tokens


def test_decode_completion__special_tokens__are_not_skipped() -> None:
    assert decode_completion(_Commas(), (3, 7), {7}) == "3"
