"""The rows of a submission's file, one per rollout, and the budget that a file must keep to."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from covey.protocol.ids import GroupId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One row: a completion with its proofs and reward.

    Example: Rollout(group=0, sibling=3, seed=17, prompt=(2, 40), tokens=(41, 1), logprobs=(-0.1, -0.2),
    proofs=(b"...",), finished=True, reward=1.0).
    """

    group: GroupId
    sibling: int
    seed: int
    """The slot's 63-bit sampling seed."""
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    """Completion tokens, with the end token where there is one."""
    logprobs: tuple[float, ...]
    """float32, of the unmodified model, one a token."""
    proofs: tuple[bytes, ...]
    """One TOPLOC proof per window of the pool's `proof_window` tokens, the last may be short."""
    finished: bool
    """Whether the last token is the end token."""
    reward: float


NAMES = tuple(field.name for field in fields(Rollout))
"""Of the columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a file may hold.  Decoded bytes are estimated from the metadata and enforced batch by batch."""

    file_bytes: int
    rows: int
    prompt_tokens: int
    completion_tokens: int
    proof_bytes: int = 258
    proof_window: int = 32
    """Tokens per proof."""

    @property
    def column_values(self) -> int:
        """Upper bound of the leaf values of any column of a lawful file."""
        return self.rows * max(self.prompt_tokens, self.completion_tokens)

    @property
    def decoded_bytes(self) -> int:
        """Upper bound of the Arrow size of a lawful file."""
        per_row = 64 + 4 * self.prompt_tokens + 8 * self.completion_tokens
        proofs = 1 + self.completion_tokens // self.proof_window
        return 4096 + self.rows * (per_row + (self.proof_bytes + 4) * proofs)


def is_whole(rollouts: Sequence[Rollout], *, groups: int, group_size: int) -> bool:
    """Whether there is exactly one rollout for each slot of `groups` groups of `group_size` siblings, in any order."""
    slots = [(group, sibling) for group in range(groups) for sibling in range(group_size)]
    return sorted((rollout.group, rollout.sibling) for rollout in rollouts) == slots


def count_units(rollouts: Sequence[Rollout]) -> int:
    """Work units of rows: their completion tokens."""
    return sum(len(rollout.tokens) for rollout in rollouts)
