"""The engine `vllm` in the exact lane: whether decoding in batches of any size equals replay to the bit.

The mode is the first that the engine proves at its start, with graphs tried first. The rate is compared with that of
the same engine in the calibrated lane, without graphs. `exact_windows` measures honest windows and cheats."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.engines.generation_speed import generate
from benchmarks.gpu.exact_windows import LENGTHS, TINY, TINY_LENGTHS, LanePair, LaneSizes, measure_lane, record_found
from benchmarks.gpu.random_models import CAPTURE, count_tokens
from benchmarks.gpu.section_run import SectionRun
from benchmarks.gpu.vllm_policies import build_exact_options, build_options, read_card_gb, save_peaked
from benchmarks.gpu.vllm_speed import draw_round
from benchmarks.measurement import Bar
from benchmarks.verification.attacks import build_params
from covey.engines.base import Completion, GenerationRequest
from covey.engines.vllm.engine import VllmEngine
from covey.engines.vllm.vllm_options import NotExactError, VllmOptions
from covey.errors import OperatorError
from validator.calibration.calibrate import build_rollouts
from validator.replay import measure as measure_distances

BATCHES, TINY_BATCHES = (64, 8, 1), (8, 4, 1)
"""Sizes of batches, the largest first.  The requests of a smaller one are the first of a larger one."""
TOKENS = 160


def measure(run: SectionRun) -> None:
    """Measure the section."""
    invariant, calibrated = list[float](), list[float]()
    with save_peaked(run) as policy:
        run.attempt("invariant", lambda: invariant.extend(measure_exact(run, policy)), seconds=50)
        run.attempt("calibrated", lambda: calibrated.extend(measure_calibrated(run, policy)), seconds=40)
    if invariant:
        run.record(
            "0.6B, generation with proofs", median(invariant), "tokens/s", n=len(invariant), peer="not invariant",
            peer_value=median(calibrated) if calibrated else None,
        )  # fmt: skip


def measure_exact(run: SectionRun, policy: Path) -> list[float]:
    """Record how much of the work of the exact lane differs from its replay; return the rates of the largest batch."""
    sizes = run.pick(BATCHES, TINY_BATCHES)
    with start_exact(run, policy) as (worker, options):
        requests = draw_round(run, sizes[0], run.pick(TOKENS, 8), 500)
        largest: list[Completion] = []
        for size in sizes:
            made = worker.generate(requests[:size], temperature=1.0, capture=CAPTURE)
            record_equality(run, worker, requests[:size], made)
            if not largest:
                largest = made
                continue
            different = sum(not is_same(one, other) for one, other in zip(made, largest, strict=False))
            run.record(
                f"batch {size}, completions as in {sizes[0]}", different, "different", n=size, aim=Bar(most=0),
                is_value_aimed=True,
            )  # fmt: skip
        rates = time_generation(run, worker)
        with open_engine(run, options) as validator:
            validator.load_policy(policy, 0)
            lane = LanePair(worker=worker, validator=validator, policy=policy, sizes=run.pick(LaneSizes(), TINY))
            measure_lane(run, lane)
            worker.close()  # the card's memory is for another worker
            run.attempt("cheat, another attention backend", lambda: measure_backend(run, lane, options), seconds=60)
        return rates


@contextmanager
def start_exact(run: SectionRun, policy: Path) -> Iterator[tuple[VllmEngine, VllmOptions]]:
    """Start an engine in the first mode of the exact lane that it proves, and record how many modes failed."""
    failures: list[str] = []
    for options in build_exact_options(run, run.pick(LENGTHS, TINY_LENGTHS)):
        with open_engine(run, options) as engine:
            try:
                engine.load_policy(policy, 0)
            except NotExactError as error:
                failures.append(f"not {options.describe_mode()}: {error.message}")
                continue
            note = "; ".join([options.describe_mode(), *failures])
            run.record("modes that failed the proof", len(failures), "modes", note=note)
            yield engine, options
            return
    raise OperatorError("not_exact", "; ".join(failures), fix="Read the log of the section")


def measure_backend(run: SectionRun, lane: LanePair, options: VllmOptions) -> None:
    """Record how many submissions of a worker with another attention backend are found."""
    if run.device == "cpu":
        run.record("cheat, another attention backend", None, note="skipped: a CPU has one attention backend")
        return
    # Without the mode, because only the backend's bits count and not whether they are invariant.
    other = options.model_copy(update={"exact": False, "attention_backend": "FLASH_ATTN"})
    with open_engine(run, other) as cheat:
        cheat.load_policy(lane.policy, 0)
        record_found(run, lane, "another attention backend", cheat)


@contextmanager
def open_engine(run: SectionRun, options: VllmOptions) -> Iterator[VllmEngine]:
    """Open an engine without a policy."""
    with VllmEngine(device=run.device, max_batch=run.pick(256, TINY_BATCHES[0]), options=options) as engine:
        yield engine


def measure_calibrated(run: SectionRun, policy: Path) -> list[float]:
    """Return the rates without the mode."""
    with open_eager(run, policy) as engine:
        return time_generation(run, engine)


def record_equality(
    run: SectionRun, engine: VllmEngine, requests: Sequence[GenerationRequest], made: Sequence[Completion]
) -> None:
    """Record how many windows differ from their replay in a bit."""
    params = build_params("bfloat16", worker_engine="vllm", validator_engine="vllm", hardware="cpu")
    found = measure_distances(build_rollouts(requests, made, params), engine, params)
    windows = [window for each in found for window in each.windows]
    different = sum(each.sign_exponent_mismatches != 0 or each.mantissa_mean != 0 for each in windows)
    logprobs, margins = (int(np.count_nonzero(np.concatenate(each))) for each in (
        [each.deviations for each in found], [each.margins for each in found],
    ))  # fmt: skip
    run.record(
        f"batch {len(requests)}, windows as replayed", different, "different", n=len(windows), aim=Bar(most=0),
        is_value_aimed=True, memory_gb=read_card_gb(run),
        note=f"of {count_tokens(made)} tokens {logprobs} log-probabilities differ, {margins} lose the argmax",
    )  # fmt: skip


def is_same(one: Completion, other: Completion) -> bool:
    """Return whether two completions have the same tokens and log-probabilities, to the bit."""
    return one.tokens == other.tokens and one.logprobs == other.logprobs


def time_generation(run: SectionRun, engine: VllmEngine) -> list[float]:
    """Return the tokens per second of the largest batch with proofs in up to three rounds, after one that warms up."""
    size, rates = run.pick(BATCHES, TINY_BATCHES)[0], []
    for round_ in range(4):
        requests, made = draw_round(run, size, run.pick(TOKENS, 8), round_), list[Completion]()

        def call(requests: list[GenerationRequest] = requests, made: list[Completion] = made) -> None:
            made.extend(generate(engine, requests, with_proofs=True))

        (seconds,) = run.time(call, repeats=1, is_warm=True)
        rates.append(count_tokens(made) / seconds)
    return rates[1:]


@contextmanager
def open_eager(run: SectionRun, policy: Path) -> Iterator[VllmEngine]:
    """Start an engine of the calibrated lane without CUDA graphs."""
    options, batch = build_options(run, is_eager=True), run.pick(BATCHES, TINY_BATCHES)[0]
    with VllmEngine(device=run.device, max_batch=batch, options=options) as engine:
        engine.load_policy(policy, 0)
        yield engine
