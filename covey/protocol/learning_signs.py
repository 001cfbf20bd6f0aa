"""Signs that a run cannot learn, as the trainer reports them and the coordinator shows them.

Main names: `LearningSign`, `describe_signs`. The trainer decides which signs are present
(`trainer.monitoring.learning`), so that no text of a peer is shown: the texts are those of this module.
"""

from collections.abc import Collection
from enum import StrEnum


class LearningSign(StrEnum):
    """A sign that a run cannot learn. Causes come before their effects."""

    TRUNCATED = "truncated"
    NO_ANSWER = "no_answer"
    CONSTANT_REWARD = "constant_reward"
    NO_LIVE_GROUP = "no_live_group"
    ZERO_GRADIENT = "zero_gradient"

    @property
    def sentence(self) -> str:
        """What is wrong, without a full stop. Example: "no group has rewards that differ"."""
        return _TEXTS[self][0]

    @property
    def advice(self) -> str:
        """Imperative sentence that names the setting to look at."""
        return _TEXTS[self][1]


_TEXTS = {
    LearningSign.TRUNCATED: (
        "most completions are cut at the token limit",
        "Create a pool with a larger max_completion_tokens, or ask for shorter answers in the environment's "
        "option instruction",
    ),
    LearningSign.NO_ANSWER: (
        "most finished completions contain no answer that can be extracted",
        "Compare completions with the environment's option extraction, and ask for that form of an answer in its "
        "option instruction",
    ),
    LearningSign.CONSTANT_REWARD: (
        "all rollouts earn the same reward",
        "Select tasks that the model solves only sometimes with covey tasks filter, and check that the environment "
        "accepts right answers with covey tasks check",
    ),
    LearningSign.NO_LIVE_GROUP: (
        "no group has rewards that differ",
        "Select tasks that the model solves only sometimes with covey tasks filter, or create a pool with a larger "
        "group_size. If batch/samples is 0, read the log for skipped submissions",
    ),
    LearningSign.ZERO_GRADIENT: (
        "the gradient is exactly zero",
        "Act on the other alarms first. Without others, look at the trainer's setting loss.mask_truncated_completions",
    ),
}


def describe_signs(signs: Collection[LearningSign]) -> str:
    """Join the sentences of signs, in the order of `LearningSign`."""
    return "; ".join(sign.sentence for sign in LearningSign if sign in signs)
