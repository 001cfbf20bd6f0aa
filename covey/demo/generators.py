"""Presets of the demo for generators of reasoning-gym that have none of their own."""

from covey.demo.environments import GENERATOR, Part, Preset
from covey.environments.base import refuse_data_sets
from covey.environments.kinds.reasoning_gym import ReasoningGymSource
from covey.errors import OperatorError
from covey.model.recipe import WarmStart

LOOKED_AT = 64
"""Tasks by which the limits of tokens are chosen."""
MAX_PROMPT, MAX_ANSWER = 384, 64
"""Longest prompt and answer in bytes that the tiny model is asked for."""
HELD_OUT = 64
"""Held-out prompts of one evaluation, where the generator has that many."""
GAIN = 0.02
"""Reward that must be gained: how fast the tiny model learns a generator that nobody has tried is not known."""
MARGIN = 1.25
"""Tokens that a prompt may have, in multiples of the longest one that was looked at."""


def build_preset(name: str, generator: str) -> Preset:
    """The preset of a generator with its own settings; `name`: the value of `--environment`.

    Raises OperatorError("bad_demo_environment") for a generator that there is not, or whose texts are too long.
    """
    options = {"name": generator}
    try:
        source = ReasoningGymSource(options, refuse_data_sets)
        tasks = [source.draw(number) for number in range(LOOKED_AT)]
    except OperatorError as error:
        raise _refuse(error.message) from error
    answers = [source.find_answer(task) for task in tasks]
    prompt = max(len(task.question.encode()) for task in tasks)
    answer = max(len(text.encode()) for text in answers)
    if prompt > MAX_PROMPT or answer > MAX_ANSWER:
        raise _refuse(
            f"{generator} asks in up to {prompt} bytes for answers of up to {answer}; the demo's model reads"
            f" {MAX_PROMPT} and writes {MAX_ANSWER}"
        )
    max_prompt_tokens, max_completion_tokens = round(MARGIN * prompt) + 2, answer + 2
    symbols = "".join(sorted({character for text in answers for character in text.lower() if character.isalnum()}))
    return Preset(
        name=name,
        parts=(Part(kind="reasoning_gym", options=options),),
        recipe=WarmStart(symbols=symbols, noise=0.1, max_positions=max(256, max_prompt_tokens + max_completion_tokens)),
        max_prompt_tokens=max_prompt_tokens,
        max_completion_tokens=max_completion_tokens,
        evaluation_prompts=HELD_OUT,
        gain=GAIN,
    )


def _refuse(message: str) -> OperatorError:
    return OperatorError(
        "bad_demo_environment",
        message,
        fix=f"Name a generator with short questions and answers, for example --environment {GENERATOR}chain_sum",
    )
