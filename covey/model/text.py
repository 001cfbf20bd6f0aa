"""Conversion of tokens to text, the same for worker, validator and trainer.

Only `decode_completion` and `prompts.encode_prompt` convert between text and tokens.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class AddedToken(Protocol):
    """A token that a tokenizer looks for in a text before it splits the rest of the text."""

    @property
    def content(self) -> str:
        """Text of the token."""

    @property
    def special(self) -> bool:
        """Whether the token is a control token and not text."""


class Tokenizer(Protocol):
    """The methods of a Hugging Face tokenizer that Covey uses."""

    @property
    def bos_token_id(self) -> int | None:
        """Id of the token that opens a prompt. None if the model has none."""

    @property
    def chat_template(self) -> str | Mapping[str, str] | None:
        """Jinja template that turns messages into a prompt, or several templates by name. None if there is none."""

    @property
    def special_tokens_map(self) -> Mapping[str, object]:
        """Texts of the special tokens by name, for example "bos_token"."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]:
        """Added tokens by id, including the special tokens."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Return the tokens of `text`."""

    def apply_chat_template(
        self,
        conversation: list[dict[str, str]],
        *,
        tokenize: bool = ...,
        add_generation_prompt: bool = ...,
        **kwargs: Any,
    ) -> object:
        """Return the prompt that the chat template builds from messages: tokens if `tokenize` is set, else text."""

    def decode(self, token_ids: NDArray[np.int64], *, skip_special_tokens: bool = ...) -> str | list[str]:
        """Return the text of `token_ids`, int64[n]. If there are several rows, return a list."""


def decode_completion(tokenizer: Tokenizer, tokens: Sequence[int], end_tokens: Set[int]) -> str:
    """Return the text of a completion, without its last token if that is one of `end_tokens`.

    Other special tokens stay visible to a grader, because removing them could turn a wrong answer into a correct one.
    Bytes that are not UTF-8 become U+FFFD.
    """
    kept = list(tokens)
    if kept and kept[-1] in end_tokens:
        kept.pop()
    # The ids are passed as an array, because a tokenizer checks the type of every entry of a list.
    text = tokenizer.decode(np.array(kept, np.int64), skip_special_tokens=False)
    return text if isinstance(text, str) else "".join(text)
