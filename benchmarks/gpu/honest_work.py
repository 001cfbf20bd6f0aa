"""Honest work and cheats in bfloat16 under calibrated limits, generated and replayed by the engine `hf`.

Honest work of batches of three sizes is replayed.  Two thirds of it set the limits, and the other third must pass.
Then each cheat writes submissions, and the limits must reject them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedModel

from benchmarks.gpu.random_models import SMALL, build_peaked, draw_requests, open_engine
from benchmarks.gpu.section_run import SectionRun
from benchmarks.measurement import Bar
from benchmarks.verification.attacks import build_params
from benchmarks.verification.policy_variants import build_variant, perturb, round_to_int8
from benchmarks.verification.rejections import split
from covey.engines.base import Engine, GenerationRequest
from covey.protocol.params import PoolParams, VerificationParams
from covey.toploc.topk import build_capture
from validator.calibration.calibrate import build_rollouts, propose
from validator.distance_limits import find_breach
from validator.replay import RolloutDistances
from validator.replay import measure as measure_distances

BATCHES = ((8, 16), (64, 128), (256, 256))
"""Sizes of batches of honest work, and the number of completions of each."""
CHEAT_BATCH, VALIDATOR_BATCH = 256, 64
"""Sequences that a cheat and the validator compute together."""
SUBMISSION, SUBMISSIONS = 16, 24
"""Completions of a submission, and submissions of each cheat."""
FALSE_REJECT_RATE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSizes:
    """Sizes of honest work and of cheats."""

    batches: tuple[tuple[int, int], ...] = BATCHES
    prompt: int = 100
    """Tokens of the longest prompt."""
    tokens: int = 128
    """Tokens of an honest completion."""
    cheat_tokens: int = 64
    """Tokens of a cheat's completion."""
    submission: int = SUBMISSION
    submissions: int = SUBMISSIONS


TINY = WorkSizes(batches=((2, 8), (8, 16)), prompt=12, tokens=8, cheat_tokens=8, submission=4, submissions=2)
Cheat = Callable[[PreTrainedModel], tuple[PreTrainedModel, float]]
"""Return the model and the temperature that a cheat generates with, from the true model."""


def measure(run: SectionRun) -> None:
    """Measure the section."""
    sizes, model = run.pick(WorkSizes(), TINY), build_peaked(run, SMALL)
    params = build_params("bfloat16", worker_engine="hf", validator_engine="hf", hardware="cpu")
    validator = open_engine(model, VALIDATOR_BATCH)
    rules: list[VerificationParams] = []
    run.attempt("honest", lambda: rules.append(measure_honest(run, sizes, model, validator, params)), seconds=40)
    for name, cheat in build_cheats().items() if rules else ():

        def count(name: str = name, cheat: Cheat = cheat) -> None:
            measure_cheat(run, name, replay_cheat(sizes, cheat, model, validator, params), sizes.submission, rules[0])

        run.attempt(f"cheat, {name}", count, seconds=10)


def measure_honest(
    run: SectionRun, sizes: WorkSizes, model: PreTrainedModel, validator: Engine, params: PoolParams
) -> VerificationParams:
    """Record how much of the work that did not set the limits they reject; return the rules with the limits."""
    found: list[RolloutDistances] = []
    for batch, count in sizes.batches:
        requests = draw_work(count, sizes.prompt, sizes.tokens, validator.vocabulary_size, seed=batch)
        found += replay_work(open_engine(model, batch), requests, 1.0, validator, params)
    order = np.random.default_rng(0).permutation(len(found)).tolist()
    seen, others = ([found[i] for i in part] for part in np.split(order, [2 * len(order) // 3]))
    limits = propose([[each] for each in seen], false_reject_rate=FALSE_REJECT_RATE)
    rules = params.verification.model_copy(update={"thresholds": limits})
    windows = [[window] for each in others for window in split(each)]
    lost = (~(np.concatenate([each.margins for each in found]) <= 0)).mean()
    note = (
        f"limits: margin {limits.margin_max:.3g}, log-probability {limits.logprob_max:.3g}, exponent "
        f"{limits.exponent_max}, mantissa {limits.mantissa_mean_max:.3g}; {lost:.2%} of tokens lose the argmax"
    )
    run.record(
        "honest windows", count_breaches(windows, rules), "rejected", n=len(windows), peer="default limits",
        peer_value=count_breaches(windows, params.verification), aim=Bar(most=0), is_value_aimed=True,
        memory_gb=run.read_peak_gb(), note=note,
    )  # fmt: skip
    submissions = cut_submissions(others, sizes.submission)
    rejected = count_breaches(submissions, rules)
    run.record("honest submissions", rejected, "rejected", n=len(submissions), aim=Bar(most=0), is_value_aimed=True)
    return rules


def measure_cheat(
    run: SectionRun, name: str, found: Sequence[RolloutDistances], size: int, rules: VerificationParams
) -> None:
    """Record how many submissions of a cheat the limits reject."""
    submissions = cut_submissions(found, size)
    count = len(submissions)
    run.record(f"cheat, {name}", count_breaches(submissions, rules), "caught", n=count, peer="all", peer_value=count)


def build_cheats() -> dict[str, Cheat]:
    """Build the cheats by name."""

    def quantise(model: PreTrainedModel, first: int) -> PreTrainedModel:
        layers = tuple(f"model.layers.{i}." for i in range(first, model.config.num_hidden_layers))
        return build_variant(model, round_to_int8, is_changed=lambda name: name.startswith(layers))

    return {
        "int8 weights": lambda model: (quantise(model, 0), 1.0),
        "last two layers in int8": lambda model: (quantise(model, model.config.num_hidden_layers - 2), 1.0),
        "temperature 0.9": lambda model: (model, 0.9),
        "temperature 1.02": lambda model: (model, 1.02),
        "1 percent noise": lambda model: (build_variant(model, perturb), 1.0),
    }


def replay_cheat(
    sizes: WorkSizes, cheat: Cheat, model: PreTrainedModel, validator: Engine, params: PoolParams
) -> list[RolloutDistances]:
    """Return the distances of a cheat's submissions."""
    count = sizes.submission * sizes.submissions
    requests = draw_work(count, sizes.prompt, sizes.cheat_tokens, validator.vocabulary_size, seed=1)
    other, temperature = cheat(model)
    return replay_work(open_engine(other, CHEAT_BATCH), requests, temperature, validator, params)


def draw_work(count: int, prompt: int, tokens: int, vocabulary: int, *, seed: int) -> list[GenerationRequest]:
    """Draw requests whose prompts differ in length by up to 6 tokens, so that batches are padded."""
    requests = draw_requests([tokens] * count, prompt=prompt, vocabulary=vocabulary, seed=seed, siblings=4)
    return [
        GenerationRequest(prompt=each.prompt[i // 4 % 7 :], seed=each.seed, max_tokens=each.max_tokens)
        for i, each in enumerate(requests)
    ]


def replay_work(
    worker: Engine, requests: Sequence[GenerationRequest], temperature: float, validator: Engine, params: PoolParams
) -> list[RolloutDistances]:
    """Generate completions with proofs, and return the distances of their replay."""
    completions = worker.generate(requests, temperature=temperature, capture=build_capture(params.verification))
    return measure_distances(build_rollouts(requests, completions, params), validator, params)


def cut_submissions(found: Sequence[RolloutDistances], size: int) -> list[Sequence[RolloutDistances]]:
    """Return whole submissions of `size` completions.  A rest does not count."""
    return [found[end - size : end] for end in range(size, len(found) + 1, size)]


def count_breaches(submissions: Sequence[Sequence[RolloutDistances]], rules: VerificationParams) -> int:
    """Return how many of the submissions break a limit."""
    return sum(find_breach(each, rules) is not None for each in submissions)
