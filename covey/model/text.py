"""Text to tokens and back, the same for worker, validator and trainer.

`encode_prompt` and `decode_completion` are the only two places where text meets tokens.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from covey.errors import ProtocolError


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that Covey uses."""

    @property
    def bos_token_id(self) -> int | None:
        """Token that opens a prompt, if the model has one."""

    @property
    def eos_token_id(self) -> int | None:
        """Token that ends a completion."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Tokens of `text`."""

    def decode(self, token_ids: NDArray[np.int64], *, skip_special_tokens: bool = ...) -> str | list[str]:
        """Text of `token_ids`, int64[n]; a list only for several rows."""


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Beginning-of-sequence token (if the tokenizer has one), then `text`, then a newline.

    Raises ProtocolError("policy_mismatch") where nothing is left of it.
    """
    tokens = tokenizer.encode(text + "\n", add_special_tokens=False)
    if tokenizer.bos_token_id is not None:
        tokens = [tokenizer.bos_token_id, *tokens]
    if not tokens:
        raise ProtocolError("policy_mismatch", "the policy's tokenizer makes nothing of a prompt")
    return tokens


def decode_completion(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Text of a completion without its end-of-sequence token.

    Other special tokens stay visible, so that a grader sees them: they must not vanish from a wrong answer.
    Bytes that are no UTF-8 become U+FFFD.
    """
    kept = list(tokens)
    if kept and kept[-1] == tokenizer.eos_token_id:
        kept.pop()
    # An array: a tokenizer asks every entry of a list whether it is a number.
    text = tokenizer.decode(np.array(kept, np.int64), skip_special_tokens=False)
    return text if isinstance(text, str) else "".join(text)
