"""Settings of the supervised warm start that creates a tiny model (`covey.model.tiny`).

The module imports no heavy library, so a command can use it.
"""

from dataclasses import dataclass
from string import ascii_lowercase


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStart:
    """Length and noise of a warm start. The shipped model was created with the defaults.

    Example: WarmStart(noise=0.4, symbols="0123456789").
    """

    gate: float = 0.85
    """Mean reward at temperature 1 that ends the clean phase."""
    clean_min: int = 150
    """Number of clean steps before the first measurement."""
    clean_max: int = 700
    """Maximum number of clean steps."""
    clean_every: int = 30
    """Number of clean steps between two measurements."""
    gate_prompts: int = 128
    """Number of training prompts in one measurement of the reward."""
    noisy_steps: int = 90
    """Number of steps after the clean phase, in which some symbols of the completions are wrong."""
    noise: float = 0.2
    """Probability that noise replaces a symbol of a completion."""
    symbols: str = ascii_lowercase
    """Characters that noise replaces with one another. Other characters stay unchanged."""


SPELLING = WarmStart()
"""Recipe of the shipped model."""
