"""The rows of a submission's file, one per rollout, and the limits that a file must respect."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from covey.protocol.ids import GroupId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One row of a submission's file: a completion with its proofs and reward.

    Example: Rollout(group=0, sibling=3, seed=17, prompt=(2, 40), tokens=(41, 1), logprobs=(-0.1, -0.2),
    proofs=(b"...",), finished=True, reward=1.0).
    """

    group: GroupId
    sibling: int
    seed: int
    """63-bit sampling seed of the rollout's slot."""
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    """Token ids of the completion, including the end token if there is one."""
    logprobs: tuple[float, ...]
    """Log-probabilities of the completion tokens under the unmodified model, one float32 per token."""
    proofs: tuple[bytes, ...]
    """TOPLOC proofs, one per window of the pool's `proof_window` tokens. The last window may be shorter."""
    finished: bool
    """Whether the last token is an end token."""
    reward: float
    contract: str = ""
    """Digest of the execution contract under which the completion was generated. Empty in the calibrated lane."""


CONTRACT_CHARACTERS = 66
"""Maximum number of characters of `Rollout.contract`."""
NAMES = tuple(field.name for field in fields(Rollout))
"""Column names of the file: the fields of `Rollout`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on a submission's file. Decoded bytes are estimated from the metadata and enforced batch by batch."""

    file_bytes: int
    """Maximum size of the file, in bytes."""
    rows: int
    """Maximum number of rows."""
    prompt_tokens: int
    """Maximum number of tokens of a prompt."""
    completion_tokens: int
    """Maximum number of tokens of a completion."""
    proof_bytes: int = 258
    """Maximum size of one proof, in bytes."""
    proof_window: int = 32
    """Number of tokens that one proof covers."""

    @property
    def column_values(self) -> int:
        """Upper bound on the number of leaf values in any column of a valid file."""
        return self.rows * max(self.prompt_tokens, self.completion_tokens)

    @property
    def decoded_bytes(self) -> int:
        """Upper bound on the size in bytes of a valid file after decoding to Arrow."""
        per_row = 64 + CONTRACT_CHARACTERS + 4 * self.prompt_tokens + 8 * self.completion_tokens
        proofs = 1 + self.completion_tokens // self.proof_window
        return 4096 + self.rows * (per_row + (self.proof_bytes + 4) * proofs)


def is_whole(rollouts: Sequence[Rollout], *, groups: int, group_size: int) -> bool:
    """Return whether the rollouts fill each slot of `groups` groups of `group_size` siblings exactly once.

    The rollouts may be in any order.
    """
    slots = [(group, sibling) for group in range(groups) for sibling in range(group_size)]
    return sorted((rollout.group, rollout.sibling) for rollout in rollouts) == slots


def count_units(rollouts: Sequence[Rollout]) -> int:
    """Return the number of work units of the rollouts: the total number of completion tokens."""
    return sum(len(rollout.tokens) for rollout in rollouts)
