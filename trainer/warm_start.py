"""Makes the shipped tiny model: the demo's task, the supervised warm start and the reference engine put together.

Called by the command line; one thread and half a minute.  Equal seeds give equal bytes on one machine.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from covey.engines.base import Request
from covey.engines.hf import HuggingFaceEngine
from covey.environments.base import Environment, Prompt, refuse_data_sets
from covey.environments.kinds.reasoning_gym import ReasoningGymSource
from covey.environments.registry import DEMO, load
from covey.model.files import save_policy
from covey.model.prompts import RAW, encode_prompt
from covey.model.text import decode_completion
from covey.model.tiny import warm_start

MAX_TOKENS = 8
"""Length limit of an answer: five letters and <eos> fit."""
GATE_PROMPTS = 128


def warm_start_tiny(seed: int, folder: Path, on_progress: Callable[[int, float], None]) -> float:
    """Make the tiny model in bfloat16 in `folder`.  Returns its mean reward at temperature 1 on 256 held-out prompts,
    two samples each, as an engine loads it."""
    environment, source = load(DEMO), ReasoningGymSource(DEMO.options, refuse_data_sets)

    def measure(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> float:
        engine = HuggingFaceEngine.from_model(model, tokenizer, max_batch=GATE_PROMPTS)
        prompts = [environment.prompt(2**64 + i) for i in range(GATE_PROMPTS)]
        return measure_reward(engine, environment, prompts, samples=1)

    model, tokenizer = warm_start(seed, _build_examples(source, seed), measure, on_progress)
    save_policy(model, tokenizer, folder, "bfloat16")
    engine = HuggingFaceEngine()
    engine.load_policy(folder, 0)
    return measure_reward(engine, environment, environment.held_out(256), samples=2)


def measure_reward(
    engine: HuggingFaceEngine,
    environment: Environment,
    prompts: list[Prompt],
    *,
    samples: int,
    temperature: float = 1.0,
    max_tokens: int = MAX_TOKENS,
) -> float:
    """Mean reward of `samples` completions of each prompt; sample j of prompt i has seed i * samples + j."""
    orders = [prompt for prompt in prompts for _ in range(samples)]
    requests = [
        Request(prompt=tuple(encode_prompt(engine.tokenizer, prompt.text, format=RAW)), seed=i, max_tokens=max_tokens)
        for i, prompt in enumerate(orders)
    ]
    completions = engine.generate(requests, temperature=temperature)
    rewards = [
        environment.grade(
            prompt.build_reply(
                decode_completion(engine.tokenizer, completion.tokens, engine.end_tokens),
                finished=completion.finished,
                tokens=len(completion.tokens),
            )
        ).reward
        for prompt, completion in zip(orders, completions, strict=True)
    ]
    return sum(rewards) / len(rewards)


def _build_examples(source: ReasoningGymSource, seed: int) -> Iterator[tuple[str, str]]:
    draw = seed << 32
    while True:
        task = source.draw(draw)
        yield task.question, source.find_answer(task)
        draw += 1
