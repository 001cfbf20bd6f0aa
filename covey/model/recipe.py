"""How a supervised warm start makes a tiny model (`covey.model.tiny`); light, so that a command may hold one."""

from dataclasses import dataclass
from string import ascii_lowercase


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStart:
    """How long a warm start learns, and how unsure it leaves the model.  The defaults made the shipped model.

    Example: WarmStart(noise=0.4, symbols="0123456789").
    """

    gate: float = 0.85
    """Mean reward at temperature 1 that ends the clean part."""
    clean_min: int = 150
    """Clean steps before the first measurement."""
    clean_max: int = 700
    """Largest number of clean steps."""
    clean_every: int = 30
    """Clean steps between two measurements."""
    gate_prompts: int = 128
    """Training prompts of one measurement."""
    noisy_steps: int = 90
    """Steps with wrong symbols, which follow the clean ones."""
    noise: float = 0.2
    """Probability that a symbol of a noisy answer is replaced."""
    symbols: str = ascii_lowercase
    """Characters that noise replaces by one another.  Others are left as they are."""


SPELLING = WarmStart()
"""How the shipped model was made."""
