"""The exact lane between two processes: honest windows in all circumstances, long sequences, and cheats.

A worker generates in batches of 1 to 256, mixed with prefill, with a cache so small that it preempts, with shared
prompts, and after a reload. A validator in another process replays the work. One different bit counts.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import PreTrainedModel

from benchmarks.gpu.honest_work import cut_submissions
from benchmarks.gpu.random_models import CAPTURE, SMALL, build_peaked, draw_requests
from benchmarks.gpu.section_run import SectionRun
from benchmarks.gpu.vllm_policies import read_card_gb
from benchmarks.measurement import Bar
from benchmarks.verification.attacks import build_params
from benchmarks.verification.policy_variants import build_variant, round_to_int8
from covey.engines.base import Completion, Engine, GenerationRequest
from covey.model.policy_files import save_policy
from covey.model.tiny import build_tokenizer
from validator.calibration.calibrate import build_rollouts
from validator.replay import RolloutDistances
from validator.replay import measure as measure_distances

LENGTHS, TINY_LENGTHS = (4096, 16_384), (64, 128)
"""Numbers of tokens of long sequences."""
MARGIN_S = 45.0
"""Seconds that remain of the section's time when the last honest round begins. Cheats need them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSizes:
    """Sizes of honest work and of cheats in the exact lane."""

    windows: int = 30_000
    """Number of honest windows after which no further round begins."""
    batches: tuple[int, ...] = (256, 1, 64, 2, 16)
    """Sizes of the batches of successive rounds."""
    prompt: int = 128
    tokens: int = 160
    """Tokens of a completion."""
    submission: int = 4
    """Completions of a submission."""
    submissions: int = 24
    """Submissions of each cheat."""


TINY = LaneSizes(windows=30, batches=(8, 1), prompt=8, tokens=40, submission=2, submissions=2)
Change = Callable[[PreTrainedModel], PreTrainedModel]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePair:
    """The worker, the validator and the folder of the policy that both have loaded."""

    worker: Engine
    validator: Engine
    policy: Path
    sizes: LaneSizes


def measure_lane(run: SectionRun, lane: LanePair) -> None:
    """Record all rows of the lane."""
    for length in run.pick(LENGTHS, TINY_LENGTHS):
        case = f"sequences of {length:,} tokens"
        run.attempt(case, partial(measure_long, run, lane, case, length), seconds=20)
    run.attempt("honest windows", lambda: measure_honest(run, lane), seconds=60)
    model = build_peaked(run, SMALL)
    for name, change in build_changes().items():
        run.attempt(f"cheat, {name}", partial(measure_change, run, lane, name, model, change), seconds=15)
    run.attempt("cheat, temperature 1.02", lambda: measure_temperature(run, lane), seconds=15)


def measure_long(run: SectionRun, lane: LanePair, case: str, length: int) -> None:
    """Record how many windows differ of two sequences of a length, generated with short ones."""
    tokens = min(64, length // 2)
    requests = draw(lane, 2, seed=length, prompt=length - tokens, tokens=tokens) + draw(lane, 6, seed=length + 1)
    found = replay(lane, requests, lane.worker.generate(requests, temperature=1.0, capture=CAPTURE))
    record_different(run, case, found[:2], memory_gb=read_card_gb(run))


def measure_honest(run: SectionRun, lane: LanePair) -> None:
    """Record how many of the honest windows differ from their replay."""
    found: list[RolloutDistances] = []
    before, reloads = getattr(lane.worker, "preemptions", 0), 0
    for round_ in count():
        windows = sum(len(each.windows) for each in found)
        if windows >= lane.sizes.windows or (found and not run.is_tiny and run.left < MARGIN_S):
            break
        size = lane.sizes.batches[round_ % len(lane.sizes.batches)]
        if round_ and round_ % len(lane.sizes.batches) == 0:
            lane.worker.load_policy(lane.policy, round_)
            reloads += 1
        requests, late = draw(lane, size, seed=2 * round_), draw(lane, max(1, size // 4), seed=2 * round_ + 1)
        with ThreadPoolExecutor(2) as threads:  # the second call's prompts are prefilled while the first one decodes
            calls = [
                threads.submit(lane.worker.generate, part, temperature=1.0, capture=CAPTURE)
                for part in (requests, late)
            ]
            made = [completion for call in calls for completion in call.result()]
        found += replay(lane, requests + late, made)
    preempted = getattr(lane.worker, "preemptions", 0) - before
    note = f"batches of 1 to {max(lane.sizes.batches)}, {preempted} preemptions, {reloads} reloads, two processes"
    record_different(run, "honest windows", found, note=note)


def build_changes() -> dict[str, Change]:
    """Build the policies of cheats by name."""

    def quantise(model: PreTrainedModel, layers: int) -> PreTrainedModel:
        total = model.config.num_hidden_layers
        names = tuple(f"model.layers.{i}." for i in range(total - layers, total))
        return build_variant(model, round_to_int8, is_changed=lambda name: name.startswith(names))

    return {
        "last layer in int8": lambda model: quantise(model, 1),
        "last two layers in int8": lambda model: quantise(model, 2),
        "steering by 0.1 percent": steer,
    }


@torch.no_grad()
def steer(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy whose last states move along one channel, by 0.1 percent of their norm if they are even."""
    other = build_variant(model, lambda weight: weight, is_changed=lambda name: False)
    weight = other.get_parameter("model.norm.weight")
    weight[0] *= 1 + 1e-3 * len(weight) ** 0.5
    return other


def measure_change(run: SectionRun, lane: LanePair, name: str, model: PreTrainedModel, change: Change) -> None:
    """Record how many submissions of a worker with another policy are found."""
    with TemporaryDirectory(prefix="covey-gpu-") as folder:
        save_policy(change(model), build_tokenizer(), Path(folder), "bfloat16")
        lane.worker.load_policy(Path(folder), 1)
    try:
        record_found(run, lane, name, lane.worker)
    finally:
        lane.worker.load_policy(lane.policy, 0)


def measure_temperature(run: SectionRun, lane: LanePair) -> None:
    """Record how many submissions at another temperature are found."""
    record_found(run, lane, "temperature 1.02", lane.worker, temperature=1.02)


def record_found(run: SectionRun, lane: LanePair, name: str, cheat: Engine, *, temperature: float = 1.0) -> None:
    """Record how many submissions of a cheat differ from their replay.

    Another temperature changes few tokens and nothing else, so it has no aim.
    """
    requests = draw(lane, lane.sizes.submission * lane.sizes.submissions, seed=7)
    found = replay(lane, requests, cheat.generate(requests, temperature=temperature, capture=CAPTURE))
    submissions = cut_submissions(found, lane.sizes.submission)
    caught = sum(any(count_different(each) for each in submission) for submission in submissions)
    run.record(
        f"cheat, {name}", caught, "found", n=len(submissions), peer="all", peer_value=len(submissions),
        aim=Bar(least=1) if temperature == 1.0 else None,
    )  # fmt: skip


def draw(
    lane: LanePair, size: int, *, seed: int, prompt: int | None = None, tokens: int | None = None
) -> list[GenerationRequest]:
    """Draw requests, each four of which have one prompt. Unless `prompt` is given, lengths differ by up to 6 tokens."""
    length = prompt or lane.sizes.prompt
    requests = draw_requests(
        [tokens or lane.sizes.tokens] * size, prompt=length, vocabulary=lane.validator.vocabulary_size, seed=seed,
        siblings=4,
    )  # fmt: skip
    return [
        GenerationRequest(prompt=each.prompt[0 if prompt else i // 4 % 7 :], seed=each.seed, max_tokens=each.max_tokens)
        for i, each in enumerate(requests)
    ]


def replay(lane: LanePair, requests: Sequence[GenerationRequest], made: Sequence[Completion]) -> list[RolloutDistances]:
    """Return the distances of the validator's replay."""
    params = build_params("bfloat16", worker_engine="vllm", validator_engine="vllm", hardware="cpu")
    return list(measure_distances(build_rollouts(requests, made, params), lane.validator, params))


def count_different(found: RolloutDistances) -> int:
    """Return how many windows of a rollout differ in a bit, or 1 if only a log-probability or a token does."""
    windows = sum(each.sign_exponent_mismatches != 0 or each.mantissa_mean != 0 for each in found.windows)
    return windows or int(bool(found.deviations.any() or found.margins.any()))


def record_different(
    run: SectionRun, case: str, found: Sequence[RolloutDistances], *, note: str = "", memory_gb: float | None = None
) -> None:
    """Record how many windows differ."""
    run.record(
        case, sum(map(count_different, found)), "different", n=sum(len(each.windows) for each in found),
        aim=Bar(most=0), is_value_aimed=True, note=note, memory_gb=memory_gb,
    )  # fmt: skip
