"""What verification finds, what it wrongly rejects, and what it costs: `make bench NAME=verification`.

Each architecture runs in a process of its own; ARGS="--scale 0.1" takes a tenth of every n, without the cost and what
has no bar.  Exit 1 if a rate with a bar is below it, honest work was rejected or a forgery passed.
"""

import random
from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks.verification.attacks import (
    SUBMISSION,
    SUBMISSION_CHEATS,
    VALIDATOR_BATCH,
    WINDOW_CHEATS,
    WITHOUT_A_BAR,
    WORKER_BATCH,
    AttackInput,
    SimulatedWorker,
    build_params,
)
from benchmarks.verification.cost import measure_cost
from benchmarks.verification.policy_variants import build_policies
from benchmarks.verification.runner import (
    SHORT,
    Counts,
    RejectionCounter,
    VerificationBars,
    build_parser,
    conclude,
    run_all,
    run_one,
    scale_count,
    split,
)
from covey.engines.base import GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
from covey.toploc.closeness import is_within
from covey.toploc.proofs import Bits, build_many, compare
from validator.calibration.calibrate import count_passes
from validator.distance_limits import find_breach
from validator.replay import RolloutDistances

NAME = "verification"
SUBMISSIONS = 150
"""Of each architecture, number format and cheat; 300 in all."""
WINDOW_SUBMISSIONS = 48
"""Of each architecture: over 1,500 windows of 32 tokens, 3,000 in all."""
CALIBRATION = 40
CURVE = {32: 1, 128: 4, 512: 16}
"""Tokens checked: windows."""
CURVE_CHEATS = ("int8", "int4", "stale_lr1e-5")
BF16_CHEATS = tuple(name for name in WINDOW_CHEATS if name not in WITHOUT_A_BAR)
ALIKE = (
    "other_model",
    "other_seed",
    "int8",
    "int4",
    "perturbed_1pct",
    "stale_lr1e-3",
    "stale_lr1e-5",
    "prompt_changed",
)
OTHERWISE = ("temperature_07", "top_p_09", "best_of_4", "small_writes_large_proves", "truncated", "false_eos")
FORGERIES = ("constant", "profile", "shuffled", "channels", "previous_policy")
BARS = VerificationBars(
    rates={
        "detection.fp32.window.": (0.999, 3000),
        "detection.fp32.submission.": (0.99, 300),
        "detection.bf16.submission.": (0.99, 300),
    },
    names=(
        *(f"detection.fp32.window.{name}" for name in (*ALIKE, "stale_lr1e-6", "swapped_token")),
        *(f"detection.fp32.submission.{name}" for name in OTHERWISE),
        *(f"detection.bf16.submission.{name}" for name in (*ALIKE, *OTHERWISE)),
        "false_rejects",
        "false_slashes",
    ),
    sizes={"honest_windows": 30_000, **{f"forgery_passes.{name}": 3_000 for name in FORGERIES}},
    most={"cost_full": 0.3, "cost_audit_10": 0.04},
)


def build_counter(architecture: str, dtype: str) -> RejectionCounter:
    """Hugging Face on both sides; what is no float32 wants calibration."""
    pair = {"worker_engine": "hf", "validator_engine": "hf", "hardware": "cpu"} if dtype == "bfloat16" else {}
    params = build_params(dtype, **pair)
    worker = SimulatedWorker(
        folder=build_policies(architecture),
        params=params,
        build_worker=partial(HuggingFaceEngine, dtype=dtype, max_batch=WORKER_BATCH),
    )
    validator = HuggingFaceEngine(dtype=dtype, max_batch=VALIDATOR_BATCH)
    validator.load_policy(worker.folder / "true", 0)
    return RejectionCounter(f"{architecture} {SHORT[dtype]}", worker, validator, params.verification)


def run(architecture: str, dtype: str, scale: float) -> Counts:
    """Honest work, every cheat and every forgery of one architecture in one number format."""
    counter, short, cheats = build_counter(architecture, dtype), SHORT[dtype], dict(SUBMISSION_CHEATS)
    worker = counter.worker
    if short == "bf16":
        requests = worker.draw_requests(CALIBRATION, seed=99)
        counter.calibrate(requests, worker.generate("true", requests))
        cheats |= {name: WINDOW_CHEATS[name] for name in BF16_CHEATS}
    requests = worker.draw_requests(scale_count(SUBMISSIONS, scale), seed=1)
    honest, states = worker.generate("true", requests), worker.read_states(requests)
    counter.honest(requests, honest)
    job = AttackInput(worker=worker, requests=requests, honest=honest, states=states, rng=random.Random(2))
    few = scale_count(WINDOW_SUBMISSIONS, scale) * SUBMISSION
    if short == "fp32":
        part = job.take(few, seed=3)
        for name, cheat in WINDOW_CHEATS.items():
            claim, apart = f"detection.fp32.window.{name}", f"observed.fp32.short_window.{name}"
            counter.windows(claim, part.requests, cheat(part), short=apart)
    for name, cheat in cheats.items():
        look = partial(count_curve, counter, name) if short == "bf16" and name in CURVE_CHEATS else None
        counter.submissions(f"detection.{short}.submission.{name}", requests, cheat(job), look)
    if scale >= 1:
        part = job.take(scale_count(SUBMISSIONS // 3, scale) * SUBMISSION, seed=4)
        for name, cheat in WITHOUT_A_BAR.items():
            counter.submissions(f"observed.{short}.submission.{name}", part.requests, cheat(part))
    try_forgeries(counter, requests[:few], states[:few])
    return counter.counts


def count_curve(counter: RejectionCounter, name: str, distances: Sequence[RolloutDistances]) -> None:
    """Whether parts of a submission are enough to reject it."""
    windows = [w for each in distances for w in split(each)]
    for tokens, size in CURVE.items():
        for start in range(0, len(windows) - size + 1, size):
            hit = find_breach(windows[start : start + size], counter.rules) is not None
            counter.count(f"curve.bf16.{tokens}.{name}", hit, 1)


def try_forgeries(counter: RejectionCounter, requests: Sequence[GenerationRequest], states: Sequence[Bits]) -> None:
    """Proofs without a forward pass of this policy, on honest windows."""
    limits, step = counter.rules.thresholds, counter.rules.proof_window
    windows = [each[start : start + step] for each in states for start in range(0, len(each), step)]
    for name, passed in count_passes(windows, limits, np.random.default_rng(5)).items():
        counter.count(f"forgery_passes.{name}", sum(passed), len(passed))
    earlier = counter.worker.generate("stale_lr1e-3", requests)
    for proofs, true in zip(build_many([each.tops for each in earlier]), states, strict=True):
        for i, proof in enumerate(proofs):
            bits = true[i * step : (i + 1) * step]
            if len(proof) == 2 + 2 * min(128, bits.size):
                counter.count("forgery_passes.previous_policy", is_within(limits, compare(proof, bits)), 1)


def main(arguments: Sequence[str]) -> int:
    parser = build_parser(__doc__)
    parser.add_argument("--cost", action="store_true", help="Measure the cost alone, take the rates of the last run.")
    options = parser.parse_args(arguments)
    if options.one:
        run_one(NAME, options, run)
        return 0
    if not options.cost and not run_all(NAME, options):
        return 1
    prepare_process(threads=1)
    return conclude(NAME, options.scale, BARS, measure_cost if options.scale >= 1 else tuple)
