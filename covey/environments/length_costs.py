"""What the length of a completion costs of its reward, by the options of the environment alone.

No task is drawn and no data set is opened, so a process without them can split a reward into its parts.
"""

import re

from covey.environments import mixture
from covey.environments.base import EnvironmentSpec
from covey.environments.environment import LENGTH_REQUEST, compute_length_cost, split_options

DIGITS = 9
"""Number of decimal places to which a reward's task component is rounded, because sums of floats are inexact."""
_REQUESTED = re.compile(re.escape(LENGTH_REQUEST).replace(r"\{target\}", "([0-9]{1,9})"))


class LengthCosts:
    """Length costs in an environment. Example: `LengthCosts(spec).compute(prompt_text, completion_tokens=90)`."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Read the options. Raises OperatorError("bad_environment") if one that every kind has is invalid."""
        parts = mixture.list_parts(spec.options) if spec.kind == mixture.KIND else (spec,)
        self._options = [split_options(part.options)[0] for part in parts]

    def compute(self, text: str, *, completion_tokens: int) -> float:
        """Return alpha x abs(target - completion_tokens), where target is the last length that a prompt asks for.

        The cost is 0 if `text` asks for no length, or for one that is not in the option `targets`. In a mixture, it
        is the first cost above 0 among its parts.
        """
        requested = [int(match) for match in _REQUESTED.findall(text)]
        if not requested:
            return 0.0
        costs = (
            compute_length_cost(options, requested[-1], completion_tokens)
            for options in self._options
            if requested[-1] in options.targets
        )
        return next(filter(None, costs), 0.0)

    def split(self, reward: float, text: str, *, completion_tokens: int) -> tuple[float, float]:
        """Return what a reward consists of: what the answer earned, and what the length cost, at least 0."""
        cost = self.compute(text, completion_tokens=completion_tokens)
        return round(reward + cost, DIGITS), cost
