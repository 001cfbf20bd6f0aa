"""vLLM's work judged by vLLM in the exact mode, and by Hugging Face: `make bench NAME=exact`.

Each architecture runs in a process of its own, with a vLLM for the worker and one for the validator below it.
ARGS="--scale 0.1" takes a tenth of every n.  Exit 1 if a rate with a bar is below it or honest work was rejected.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.verification.attacks import (
    SUBMISSION,
    SUBMISSION_CHEATS,
    VALIDATOR_BATCH,
    WINDOW_CHEATS,
    WITHOUT_A_BAR,
    WORKER_BATCH,
    Attack,
    AttackInput,
    SimulatedWorker,
    build_params,
    prove,
)
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
)
from covey.engines.base import Completion, Engine, GenerationRequest
from covey.engines.factory import describe_build, describe_hardware
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.vllm.engine import VllmEngine
from covey.engines.vllm.options import VllmOptions
from covey.protocol.params import PoolParams

NAME = "exact"
SUBMISSIONS = 300
"""Honest ones of each architecture and number format: over 15,000 windows."""
CHEATED = 50
"""Submissions of each architecture and cheat: over 1,500 windows of 32 tokens, 3,000 in all."""
CALIBRATION = 40
EXACT_CHEATS = {
    name: WINDOW_CHEATS[name] for name in ("other_model", "int8", "perturbed_1pct", "stale_lr1e-5", "stale_lr1e-6")
}
"""In bfloat16, by the window."""
OBSERVED_CHEATS = {
    name: WINDOW_CHEATS[name] for name in ("other_seed", "int4", "stale_lr1e-3", "swapped_token", "prompt_changed")
} | {"int8_writes_true_proves": WITHOUT_A_BAR["int8_writes_true_proves"]}
"""The same, without a bar."""
RARE_CHEATS = {
    name: WITHOUT_A_BAR[name] for name in ("int8_writes_true_proves", "false_eos_once", "false_eos_best_place")
}
"""Differ from honest work in a token here and there: by the submission, without a bar."""


def write_elsewhere(cheat: Attack) -> Attack:
    """What vLLM does not run (another sampler, heads too narrow for it), Hugging Face writes and vLLM proves."""

    def write(job: AttackInput) -> list[Completion]:
        engine = HuggingFaceEngine(dtype=job.worker.params.model.compute_dtype, max_batch=WORKER_BATCH)
        written = cheat(replace(job, worker=replace(job.worker, build_worker=lambda: engine)))
        return prove(job, [each.tokens for each in written])

    return write


ELSEWHERE = ("top_p_09", "small_writes_large_proves")
WHOLE_CHEATS = SUBMISSION_CHEATS | {name: write_elsewhere(SUBMISSION_CHEATS[name]) for name in ELSEWHERE}
"""Sampled otherwise or ended elsewhere: by the submission, without a bar."""
EXACT = ("other_model", "int8", "perturbed_1pct", "stale_lr1e-5", "stale_lr1e-6")
BARS = VerificationBars(
    rates={
        "detection.exact.window.": (0.999, 3000),
        "detection.mixed.fp32.window.": (0.999, 3000),
        "token_match.fp32": (1.0, 300_000),
        "token_match.bf16": (0.995, 300_000),
    },
    names=(
        *(f"detection.exact.window.{name}" for name in EXACT),
        *(f"detection.mixed.fp32.window.{name}" for name in WINDOW_CHEATS),
        "token_match.fp32",
        "token_match.bf16",
        *(f"{pair}.fp32.false_rejects" for pair in ("exact", "mixed")),
        "exact_false_rejects",
        "mixed.bf16.false_rejects",
    ),
    sizes={"exact_honest_windows": 30_000, "exact.fp32.honest_windows": 30_000, "mixed.fp32.honest_windows": 30_000},
)


def build_exact_params(dtype: str) -> PoolParams:
    """Of a pool whose two sides are this machine's vLLM."""
    place = {"hardware": describe_hardware("cpu", "exact"), "build": describe_build("vllm")}
    return build_params(dtype, mode="exact", worker_engine="vllm", validator_engine="vllm", **place)


def open_vllm(dtype: str, batch: int, params: PoolParams) -> VllmEngine:
    """An engine without a policy; the caller closes it."""
    return VllmEngine(dtype=dtype, max_batch=batch, options=VllmOptions().fit(params.model.longest))


def run(architecture: str, dtype: str, scale: float) -> Counts:
    """Honest work and every cheat of one architecture in one number format, under both validators."""
    params, folder = build_exact_params(dtype), build_policies(architecture)
    with open_vllm(dtype, WORKER_BATCH, params) as engine, open_vllm(dtype, VALIDATOR_BATCH, params) as validator:
        worker = SimulatedWorker(folder=folder, params=params, build_worker=lambda: engine)
        name = f"{architecture} {SHORT[dtype]}"
        exact = build_counter(f"{name} exact", worker, validator, params)
        pair = {"worker_engine": "vllm", "validator_engine": "hf", "hardware": "cpu"}
        other = HuggingFaceEngine(dtype=dtype, max_batch=VALIDATOR_BATCH)
        mixed = build_counter(f"{name} mixed", worker, other, build_params(dtype, **pair))
        if dtype == "float32":
            run_float32(exact, mixed, scale)
        else:
            run_bfloat16(exact, mixed, scale)
    return exact.counts | mixed.counts


def build_counter(name: str, worker: SimulatedWorker, validator: Engine, params: PoolParams) -> RejectionCounter:
    """A validator that holds the true policy."""
    validator.load_policy(worker.folder / "true", 0)
    return RejectionCounter(name, worker, validator, params.verification)


def run_float32(exact: RejectionCounter, mixed: RejectionCounter, scale: float) -> None:
    """Both validators on honest work; Hugging Face, under the default thresholds, on every window of the cheats."""
    requests, honest = generate_honest(exact.worker, scale)
    exact.honest(requests, honest, prefix="exact.fp32.")
    mixed.honest(requests, honest, prefix="mixed.fp32.", match="token_match.fp32")
    job = build_input(exact.worker, requests, honest, scale)
    for name, cheat in WINDOW_CHEATS.items():
        claim, short = f"detection.mixed.fp32.window.{name}", f"observed.mixed.fp32.short_window.{name}"
        mixed.windows(claim, job.requests, cheat(job), short=short)
    for name, cheat in WHOLE_CHEATS.items():
        mixed.submissions(f"observed.mixed.fp32.submission.{name}", job.requests, cheat(job))


def run_bfloat16(exact: RejectionCounter, mixed: RejectionCounter, scale: float) -> None:
    """vLLM on every window of honest work and cheats, Hugging Face calibrated and by the submission."""
    worker = exact.worker
    others = worker.draw_requests(CALIBRATION, seed=99)
    mixed.calibrate(others, worker.generate("true", others))
    requests, honest = generate_honest(worker, scale)
    exact.honest(requests, honest, prefix="exact_")
    mixed.honest(requests, honest, prefix="mixed.bf16.", match="token_match.bf16")
    job = build_input(worker, requests, honest, scale)
    for name, cheat in (EXACT_CHEATS | OBSERVED_CHEATS | RARE_CHEATS | WHOLE_CHEATS).items():
        made = cheat(job)
        if name in EXACT_CHEATS or name in OBSERVED_CHEATS:
            claim = f"{'detection' if name in EXACT_CHEATS else 'observed'}.exact.window.{name}"
            exact.windows(claim, job.requests, made, short=f"observed.exact.short_window.{name}")
        if name in RARE_CHEATS | WHOLE_CHEATS:
            exact.submissions(f"observed.exact.submission.{name}", job.requests, made)
        mixed.submissions(f"observed.mixed.bf16.submission.{name}", job.requests, made)


def generate_honest(worker: SimulatedWorker, scale: float) -> tuple[list[GenerationRequest], list[Completion]]:
    """Orders, and what an honest worker makes of them."""
    requests = worker.draw_requests(scale_count(SUBMISSIONS, scale), seed=1)
    return requests, worker.generate("true", requests)


def build_input(
    worker: SimulatedWorker, requests: list[GenerationRequest], honest: list[Completion], scale: float
) -> AttackInput:
    """The first of the orders, for cheats."""
    few = scale_count(CHEATED, scale) * SUBMISSION
    states = worker.read_states(requests[:few])
    return AttackInput(worker=worker, requests=requests[:few], honest=honest[:few], states=states, rng=random.Random(3))


def main(arguments: Sequence[str]) -> int:
    options = build_parser(__doc__).parse_args(arguments)
    if options.one:
        run_one(NAME, options, run)
        return 0
    return conclude(NAME, options.scale, BARS) if run_all(NAME, options) else 1
