"""Derives thresholds from the distances between honest work and its replay.

They are valid only for one model, dtype and pair of engines. A pool's parameters contain them and are fixed at its
creation. Thresholds that would accept a forgery are refused.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from covey.engines.base import Completion, Engine, GenerationRequest, ReplayRequest
from covey.environments.base import Environment
from covey.errors import OperatorError
from covey.model.prompts import PromptFormat
from covey.protocol.ids import GroupId
from covey.protocol.params import PoolParams, VerificationParams
from covey.protocol.submission_file.rows import Rollout
from covey.protocol.thresholds import Pooled, Thresholds
from covey.slots import draw_prompt
from covey.toploc.closeness import is_within
from covey.toploc.proofs import Distances, build_many, compare, is_lawful_modulus
from covey.toploc.topk import EVERYTHING, build_capture, join
from validator.calibration.forgeries import FORGERS, Bits
from validator.distance_limits import collect_items, find_breach
from validator.replay import RolloutDistances, measure

SINGLE_SLACK = 3.0
"""Limit of a single window or token, as a multiple of the largest honest distance seen. Chosen in decision 012."""
CHANCE = 1.0
"""Maximum contribution to a window's mean mantissa difference by a value that the prover did not have.

Such a value counts only if its sign and exponent agree by chance, with probability 1/512. The limit of a single window
tolerates one such value, and the limits of sums count it (decision 012).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSample:
    """One submission of honest work with the distances of its replay."""

    rollouts: tuple[Rollout, ...]
    distances: tuple[RolloutDistances, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Result of a calibration: the proposed rules, and the work that they are derived from."""

    verification: VerificationParams
    submissions: int
    windows: int
    tokens: int
    is_identical: bool
    """Whether every replay equalled the worker's claims bit for bit."""
    forgeries: Mapping[str, int]
    """Number of windows on which each forgery was tried, by name. None of them passed."""


def collect(
    params: PoolParams, environment: Environment, worker: Engine, validator: Engine, *, count: int, seed: int
) -> Iterator[CalibrationSample]:
    """Yield honest submissions of the pool's size one by one. Both engines must have loaded the same policy."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        rollouts = _roll_out(params, environment, worker, rng)
        yield CalibrationSample(rollouts=rollouts, distances=tuple(measure(rollouts, validator, params)))


def _roll_out(
    params: PoolParams, environment: Environment, engine: Engine, rng: np.random.Generator
) -> tuple[Rollout, ...]:
    """Generate the groups of one task with random seeds.

    Rewards are not computed, because no distance depends on them.
    """
    requests, prompt_format = [], PromptFormat.of(params.model)
    for _ in range(params.groups_per_task):
        drawn = draw_prompt(
            int(rng.integers(1 << 62)),
            environment=environment,
            tokenizer=engine.tokenizer,
            format=prompt_format,
            longest=params.model.max_prompt_tokens,
        )
        for _ in range(params.group_size):
            seed = int(rng.integers(1 << 63, dtype=np.uint64))
            requests.append(
                GenerationRequest(prompt=drawn.tokens, seed=seed, max_tokens=params.model.max_completion_tokens)
            )
    return build_rollouts(requests, _generate(engine, requests, params), params)


def _generate(engine: Engine, requests: Sequence[GenerationRequest], params: PoolParams) -> list[Completion]:
    """Generate completions as a worker does."""
    capture = build_capture(params.verification)
    return engine.generate(requests, temperature=params.model.temperature, capture=capture)


def build_rollouts(
    requests: Sequence[GenerationRequest], completions: Sequence[Completion], params: PoolParams
) -> tuple[Rollout, ...]:
    """Return rows with proofs, in the order of the requests. All rewards are 0."""
    size, proven = params.group_size, build_many([each.tops for each in completions])
    return tuple(
        Rollout(
            group=GroupId(i // size),
            sibling=i % size,
            seed=request.seed,
            prompt=request.prompt,
            tokens=completion.tokens,
            logprobs=completion.logprobs,
            proofs=tuple(proofs),
            finished=completion.finished,
            reward=0.0,
        )
        for i, (request, completion, proofs) in enumerate(zip(requests, completions, proven, strict=True))
    )


def propose(
    found: Sequence[Sequence[RolloutDistances]], *, false_reject_rate: float, temperature: float = 1.0
) -> Thresholds:
    """Propose limits from the distances of honest submissions.

    Limits of single windows and tokens are the largest distance seen plus a slack. Limits of sums follow from mean and
    variance.

    Few honest tokens differ from the seeded argmax, so margins are rarely seen. A margin is at most the sum of the
    errors of two log-probabilities, the token's and the argmax's, divided by the temperature. Every token shows one
    such error, so twice the largest error bounds the margin.
    """
    together = [each for distances in found for each in distances]
    farthest = {name: float(values.max()) for name, _, values in collect_items(together)}
    rest = max(window.mantissa_rest for each in together for window in each.windows)
    defaults = Thresholds()
    mantissa_max = max(defaults.mantissa_mean_max, SINGLE_SLACK * rest)
    single = {
        "exponent": max(defaults.exponent_max, math.ceil(SINGLE_SLACK * farthest["exponent"])),
        "mantissa": mantissa_max + CHANCE,
        "lost": 1.0,
        "margin": max(defaults.margin_max, SINGLE_SLACK * farthest["margin"], 2 * farthest["logprob"] / temperature),
        "logprob": max(defaults.logprob_max, SINGLE_SLACK * farthest["logprob"]),
    }
    return Thresholds(
        exponent_max=int(single["exponent"]),
        mantissa_mean_max=mantissa_max,
        margin_max=single["margin"],
        logprob_max=single["logprob"],
        false_reject_rate=false_reject_rate,
        **{name: _pool(name, limit, together) for name, limit in single.items()},
    )


def _pool(name: str, limit: float, together: Sequence[RolloutDistances]) -> Pooled:
    """Return the mean of an item, and the variance of a completion's sum per item.

    The variance is taken over completions, because the items of one completion are not independent. One item at its
    own limit is added, because an event that was not seen can still happen (decision 012).
    """
    completions = [next(items for other, _, items in collect_items([each]) if other == name) for each in together]
    sizes = np.array([*map(len, completions), 1])
    sums = np.array([*(items.sum() for items in completions), limit])
    mean = float(sums.sum() / sizes.sum())
    variance = float(((sums - mean * sizes) ** 2).sum() / sizes.sum())
    return Pooled(mean=mean, variance=variance, largest=max(0.0, limit - mean), items=int(sizes.sum()))


def calibrate(
    params: PoolParams,
    environment: Environment,
    worker: Engine,
    validator: Engine,
    *,
    submissions: int,
    false_reject_rate: float,
    seed: int = 0,
    previous: Engine | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Calibration:
    """Propose thresholds from `submissions` samples. Try them on half as many further samples and on every forgery.

    `params` are the pool's parameters with the intended mode, dtype and engines. Their thresholds are replaced.
    `previous` is an engine with an earlier policy, whose proofs must not pass.

    Raises OperatorError("exact_impossible") if the exact mode is requested and any replay differs.
    Raises OperatorError("honest_rejected") if the proposal rejects one of the further samples.
    Raises OperatorError("forgery_passes") if a forgery passes, and OperatorError("too_few_windows") if one cannot be
    tried.
    """
    samples: list[CalibrationSample] = []
    for sample in collect(params, environment, worker, validator, count=submissions + submissions // 2, seed=seed):
        samples.append(sample)
        on_progress(len(samples))
    seen, others = samples[:submissions], samples[submissions:]
    is_identical = all(not values.any() for s in samples for _, _, values in collect_items(s.distances))
    if params.verification.mode == "exact" and not is_identical:
        raise OperatorError(
            "exact_impossible",
            "replays are not bit for bit equal to the workers' values, so the exact mode is impossible",
            fix="Use the same engine build on the same class of hardware, or use the calibrated mode",
        )
    thresholds = propose(
        [s.distances for s in seen], false_reject_rate=false_reject_rate, temperature=params.model.temperature
    )
    rules = params.verification.model_copy(update={"thresholds": thresholds})
    rejected = sum(find_breach(s.distances, rules) is not None for s in others)
    if rejected:
        raise OperatorError(
            "honest_rejected",
            f"the proposed thresholds reject {rejected} of {len(others)} other honest submissions",
            fix="Increase the number of submissions",
        )
    return Calibration(
        verification=rules,
        submissions=len(samples),
        windows=sum(len(d.windows) for s in samples for d in s.distances),
        tokens=sum(d.tokens for s in samples for d in s.distances),
        is_identical=is_identical,
        forgeries=try_forgeries(samples, params, thresholds, validator=validator, previous=previous, seed=seed),
    )


def try_forgeries(
    samples: Sequence[CalibrationSample],
    params: PoolParams,
    thresholds: Thresholds,
    *,
    validator: Engine,
    previous: Engine | None = None,
    seed: int = 0,
) -> dict[str, int]:
    """Return the number of windows on which each forgery was tried.

    Raises OperatorError("forgery_passes") if one passes, and OperatorError("too_few_windows") if one cannot be tried.
    """
    rng, tried = np.random.default_rng(seed), {}
    states = [read_states(sample, validator, params) for sample in samples]
    windows = [window for sample in states for bits in sample for window in cut_windows(bits, params)]
    for name, passed in count_passes(windows, thresholds, rng).items():
        tried[name] = _require_none(name, passed)
    if previous is not None:
        pairs = zip(samples, states, strict=True)
        passed = [is_within(thresholds, d) for s, bits in pairs for d in _prove_with(previous, s, bits, params)]
        tried["previous"] = _require_none("previous", passed)
    return tried


def read_states(sample: CalibrationSample, engine: Engine, params: PoolParams) -> list[Bits]:
    """Return the states that the engine computes for each rollout, uint16[tokens, hidden].

    Rollouts are replayed one at a time, because all states of a large model's submission take gigabytes.
    """

    def read(row: Rollout) -> Bits:
        claim = ReplayRequest(prompt=row.prompt, tokens=row.tokens, seed=row.seed)
        (replay,) = engine.replay([claim], temperature=params.model.temperature, capture=EVERYTHING)
        return join(replay.tops)

    return list(map(read, sample.rollouts))


def cut_windows(states: Bits, params: PoolParams) -> list[Bits]:
    """Split the states of a completion into its proof windows, each uint16[rows, hidden]."""
    step = params.verification.proof_window
    return [states[start : start + step] for start in range(0, len(states), step)]


def count_passes(windows: Sequence[Bits], thresholds: Thresholds, rng: np.random.Generator) -> dict[str, list[bool]]:
    """Return, for every forgery, whether it passes on each window.

    It is forged from a different window of the same length.
    """
    passed: dict[str, list[bool]] = {name: [] for name in FORGERS}
    for _, group in groupby(sorted(windows, key=len), key=len):
        alike: list[NDArray[np.uint16]] = list(group)
        for i, window in enumerate(alike):
            earlier = alike[i - 1]
            if np.array_equal(earlier, window):
                continue  # the honest proof of an equal window is not a forgery
            for name, forge in FORGERS.items():
                passed[name].append(_passes(forge(earlier, rng), window, thresholds))
    return passed


def _passes(proof: bytes, window: Bits, thresholds: Thresholds) -> bool:
    """Return whether a proof passes the validator's checks: first its form, then its distances."""
    modulus = int.from_bytes(proof[:2], "big")
    return is_lawful_modulus(modulus, window.size) and is_within(thresholds, compare(proof, window))


def _prove_with(
    engine: Engine, sample: CalibrationSample, states: Sequence[Bits], params: PoolParams
) -> Iterator[Distances]:
    """Yield the distances between honest states and the proofs of a different policy for the same prompts and seeds."""
    requests = [
        GenerationRequest(prompt=row.prompt, seed=row.seed, max_tokens=params.model.max_completion_tokens)
        for row in sample.rollouts
    ]
    top_k = params.verification.proof_top_k
    proven = build_many([each.tops for each in _generate(engine, requests, params)])
    for proofs, honest in zip(proven, states, strict=True):
        # Not strict, because one completion may be longer than the other.
        for proof, bits in zip(proofs, cut_windows(honest, params), strict=False):
            if len(proof) == 2 + 2 * min(top_k, bits.size):
                yield compare(proof, bits, top_k)


def _require_none(name: str, passed: Sequence[bool]) -> int:
    if not passed:
        raise OperatorError(
            "too_few_windows",
            f"there is no window to test the forgery {name} on",
            fix="Increase the number of submissions",
        )
    if any(passed):
        raise OperatorError(
            "forgery_passes",
            f"the proposed thresholds accept {sum(passed)} of {len(passed)} windows of the forgery {name}",
            fix="Use float32, the same engine for workers and validators, or a larger model",
        )
    return len(passed)
