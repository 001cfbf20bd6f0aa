"""Tokens to text, the same for worker, validator and trainer.

`decode_completion` and `prompts.encode_prompt` are the only two places where text meets tokens.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class AddedToken(Protocol):
    """A token that a tokenizer finds in a text before anything else."""

    @property
    def content(self) -> str:
        """Its text."""

    @property
    def special(self) -> bool:
        """Whether it is a control token and not text."""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that Covey uses."""

    @property
    def bos_token_id(self) -> int | None:
        """Token that opens a prompt, if the model has one."""

    @property
    def chat_template(self) -> str | Mapping[str, str] | None:
        """Jinja text that makes a prompt of messages, or several by their name."""

    @property
    def special_tokens_map(self) -> Mapping[str, object]:
        """Texts of special tokens by their name, for example "bos_token"."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]:
        """Added tokens by their id, the special ones among them."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Tokens of `text`."""

    def apply_chat_template(
        self,
        conversation: list[dict[str, str]],
        *,
        tokenize: bool = ...,
        add_generation_prompt: bool = ...,
        **kwargs: Any,
    ) -> object:
        """Prompt of a conversation by the chat template: text, unless it is to be tokenized."""

    def decode(self, token_ids: NDArray[np.int64], *, skip_special_tokens: bool = ...) -> str | list[str]:
        """Text of `token_ids`, int64[n]; a list only for several rows."""


def decode_completion(tokenizer: Tokenizer, tokens: Sequence[int], end_tokens: Set[int]) -> str:
    """Text of a completion without its last token, where that is one of `end_tokens`.

    Other special tokens stay visible, so that a grader sees them: they must not vanish from a wrong answer.
    Bytes that are not UTF-8 become U+FFFD.
    """
    kept = list(tokens)
    if kept and kept[-1] in end_tokens:
        kept.pop()
    # An array: a tokenizer asks every entry of a list whether it is a number.
    text = tokenizer.decode(np.array(kept, np.int64), skip_special_tokens=False)
    return text if isinstance(text, str) else "".join(text)
