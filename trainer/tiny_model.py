"""Warm-starts tiny models on an environment's prompts and correct completions, and evaluates them.

Everything runs in one thread. Equal arguments produce equal bytes on one machine.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from covey.engines.base import GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.environments.base import Environment, Grader, Prompt, refuse_data_sets
from covey.environments.kinds.reasoning_gym.reasoning_gym import ReasoningGymSource
from covey.environments.registry import DEMO, load
from covey.model.policy_files import save_policy
from covey.model.prompts import RAW, encode_prompt
from covey.model.recipe import SPELLING, WarmStart
from covey.model.text import decode_completion
from covey.model.tiny import warm_start

MAX_TOKENS = 8
"""Maximum length in tokens of a completion in the shipped model's task: five letters and <eos>."""
HELD_OUT_PROMPTS, HELD_OUT_SAMPLES = 256, 2
"""Number of held-out prompts, and of samples per prompt, for the evaluation of a warm start."""


def warm_start_tiny(seed: int, folder: Path, on_progress: Callable[[int, float], None]) -> float:
    """Create the shipped tiny model in bfloat16 in `folder`.

    Returns its mean reward at temperature 1 on 256 held-out prompts with two samples each, after an engine has loaded
    it.
    """
    environment, source = load(DEMO), ReasoningGymSource(DEMO.options, refuse_data_sets)
    tasks = map(source.draw, itertools.count(seed << 32))
    return warm_start_policy(
        folder,
        seed=seed,
        environment=environment,
        examples=((task.question, source.find_answer(task)) for task in tasks),
        grade=lambda replies: [environment.grade(reply) for reply in replies],
        max_tokens=MAX_TOKENS,
        on_progress=on_progress,
    )


def warm_start_policy(
    folder: Path,
    *,
    seed: int,
    environment: Environment,
    examples: Iterator[tuple[str, str]],
    grade: Grader,
    max_tokens: int,
    on_progress: Callable[[int, float], None],
    recipe: WarmStart = SPELLING,
    held_out: int = HELD_OUT_PROMPTS,
) -> float:
    """Create a tiny model for an environment in bfloat16 in `folder`.

    `examples` are endless pairs of a prompt and its correct completion. `grade` grades the environment's replies. It
    must be a `GradingPool` if grading runs programs. `on_progress` is called with step and loss.

    Returns the model's mean reward at temperature 1 on `held_out` held-out prompts with two samples each, after an
    engine has loaded it.
    """

    def measure(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> float:
        engine = HuggingFaceEngine.from_model(model, tokenizer, max_batch=recipe.gate_prompts)
        prompts = [environment.prompt(2**64 + i) for i in range(recipe.gate_prompts)]
        return measure_reward(engine, prompts, grade=grade, samples=1, max_tokens=max_tokens)

    model, tokenizer = warm_start(seed, examples, measure, on_progress, recipe=recipe)
    save_policy(model, tokenizer, folder, "bfloat16")
    engine = HuggingFaceEngine()
    engine.load_policy(folder, 0)
    prompts = environment.held_out(held_out)
    return measure_reward(engine, prompts, grade=grade, samples=HELD_OUT_SAMPLES, max_tokens=max_tokens)


def measure_reward(
    engine: HuggingFaceEngine,
    prompts: list[Prompt],
    *,
    grade: Grader,
    samples: int,
    temperature: float = 1.0,
    max_tokens: int = MAX_TOKENS,
) -> float:
    """Return the mean reward of `samples` completions per prompt. Sample j of prompt i has seed i * samples + j."""
    orders = [prompt for prompt in prompts for _ in range(samples)]
    requests = [
        GenerationRequest(
            prompt=tuple(encode_prompt(engine.tokenizer, prompt.text, system=prompt.system, format=RAW)),
            seed=i,
            max_tokens=max_tokens,
        )
        for i, prompt in enumerate(orders)
    ]
    completions = engine.generate(requests, temperature=temperature)
    replies = [
        prompt.build_reply(
            decode_completion(engine.tokenizer, completion.tokens, engine.end_tokens),
            finished=completion.finished,
            tokens=len(completion.tokens),
        )
        for prompt, completion in zip(orders, completions, strict=True)
    ]
    return sum(each.reward for each in grade(replies)) / len(replies)
