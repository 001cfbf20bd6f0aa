"""Shares of attacks on vLLM that a second vLLM detects in the exact mode, and Hugging Face with limits.

vLLM generates 128 completions at a time.  "exact": another vLLM replays one submission at a time, and any difference of
a proof, a log-probability or a margin rejects.  "mixed": Hugging Face replays the same work, in float32 under the
default thresholds, in bfloat16 under calibrated ones.  Policies, prompts, submissions, attacks and names
are those of the benchmark "verification".

An attack's policy is loaded into the worker's vLLM, and attacks that prove with the true policy prove on vLLM.
Hugging Face writes what vLLM does not run: another sampler, and a model whose heads are too narrow for its kernels.
Each architecture runs in a process of its own, which has a vLLM for the worker and one for the validator.
ARGS="--scale 0.1" takes a tenth of every n.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.verification.attacks import (
    OBSERVED_ATTACKS,
    SUBMISSION,
    SUBMISSION_ATTACKS,
    VALIDATOR_BATCH,
    WINDOW_ATTACKS,
    WORKER_BATCH,
    Attack,
    AttackInput,
    SimulatedWorker,
    build_params,
    prove,
)
from benchmarks.verification.policy_variants import build_policies
from benchmarks.verification.rejections import Counts, RejectionCounter
from benchmarks.verification.runner import (
    SHORT,
    VerificationBars,
    build_parser,
    conclude,
    run_all,
    run_one,
    scale_count,
)
from covey.engines.base import Completion, Engine, GenerationRequest
from covey.engines.factory import describe_contract
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.vllm.engine import VllmEngine
from covey.engines.vllm.vllm_options import VllmOptions
from covey.protocol.params import PoolParams

NAME = "exact"
SUBMISSIONS = 300
"""Honest submissions of each architecture and number format: over 15,000 windows."""
ATTACKED = 50
"""Submissions of each architecture and attack: over 3,000 windows of 32 tokens of both architectures."""
CALIBRATION = 40
"""Honest submissions of each architecture that only set the thresholds."""
EXACT_ATTACKS = {
    name: WINDOW_ATTACKS[name] for name in ("other_model", "int8", "perturbed_1pct", "stale_lr1e-5", "stale_lr1e-6")
}
"""Attacks whose windows have a bar, in bfloat16."""
EXACT_OBSERVED_ATTACKS = {
    name: WINDOW_ATTACKS[name] for name in ("other_seed", "int4", "stale_lr1e-3", "swapped_token", "prompt_changed")
} | {"int8_writes_true_proves": OBSERVED_ATTACKS["int8_writes_true_proves"]}
"""Attacks whose windows have no bar, in bfloat16."""
RARE_ATTACKS = {
    name: OBSERVED_ATTACKS[name] for name in ("int8_writes_true_proves", "false_eos_once", "false_eos_best_place")
}
"""Attacks that differ from honest work in single tokens.  They count by submission, without a bar."""


def write_elsewhere(attack: Attack) -> Attack:
    """Return the attack that Hugging Face writes and vLLM proves."""

    def write(inputs: AttackInput) -> list[Completion]:
        engine = HuggingFaceEngine(dtype=inputs.worker.params.model.compute_dtype, max_batch=WORKER_BATCH)
        written = attack(replace(inputs, worker=replace(inputs.worker, build_worker=lambda: engine)))
        return prove(inputs, [each.tokens for each in written])

    return write


ELSEWHERE = ("top_p_09", "small_writes_large_proves")
"""Attacks that vLLM does not run: another sampler, and heads that are too narrow for its kernels."""
WHOLE_ATTACKS = SUBMISSION_ATTACKS | {name: write_elsewhere(SUBMISSION_ATTACKS[name]) for name in ELSEWHERE}
"""Attacks that sample or end otherwise.  They count by submission, without a bar."""
EXACT_NAMES = ("other_model", "int8", "perturbed_1pct", "stale_lr1e-5", "stale_lr1e-6")
BARS = VerificationBars(
    rates={
        "detection.exact.window.": (0.999, 3000),
        "detection.mixed.fp32.window.": (0.999, 3000),
        "token_match.fp32": (1.0, 300_000),
        "token_match.bf16": (0.995, 300_000),
    },
    names=(
        *(f"detection.exact.window.{name}" for name in EXACT_NAMES),
        *(f"detection.mixed.fp32.window.{name}" for name in WINDOW_ATTACKS),
        "token_match.fp32",
        "token_match.bf16",
        *(f"{pair}.fp32.false_rejects" for pair in ("exact", "mixed")),
        "exact_false_rejects",
        "mixed.bf16.false_rejects",
    ),
    sizes={"exact_honest_windows": 30_000, "exact.fp32.honest_windows": 30_000, "mixed.fp32.honest_windows": 30_000},
)


def build_exact_params(dtype: str) -> PoolParams:
    """Build the parameters of a pool whose worker and validator run this machine's vLLM."""
    contracts = [describe_contract(VllmOptions(), device="cpu", dtype=dtype)]
    return build_params(dtype, mode="exact", worker_engine="vllm", validator_engine="vllm", contracts=contracts)


def open_vllm(dtype: str, batch: int, params: PoolParams) -> VllmEngine:
    """Open an engine without a policy, which the caller closes."""
    return VllmEngine(dtype=dtype, max_batch=batch, options=VllmOptions(exact=True).fit(params.model.longest))


def run(architecture: str, dtype: str, scale: float) -> Counts:
    """Count honest work and every attack of one architecture in one number format, under both validators."""
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
    """Load the true policy into a validator's engine, and build its counter."""
    validator.load_policy(worker.folder / "true", 0)
    return RejectionCounter(name, worker, validator, params.verification)


def run_float32(exact: RejectionCounter, mixed: RejectionCounter, scale: float) -> None:
    """Count honest work under both validators, and every window of the attacks under Hugging Face alone."""
    requests, honest = generate_honest(exact.worker, scale)
    exact.count_honest(requests, honest, prefix="exact.fp32.")
    mixed.count_honest(requests, honest, prefix="mixed.fp32.", match="token_match.fp32")
    inputs = build_inputs(exact.worker, requests, honest, scale)
    for name, attack in WINDOW_ATTACKS.items():
        long, short = f"detection.mixed.fp32.window.{name}", f"observed.mixed.fp32.short_window.{name}"
        mixed.count_windows(long, inputs.requests, attack(inputs), short=short)
    for name, attack in WHOLE_ATTACKS.items():
        mixed.count_submissions(f"observed.mixed.fp32.submission.{name}", inputs.requests, attack(inputs))


def run_bfloat16(exact: RejectionCounter, mixed: RejectionCounter, scale: float) -> None:
    """Count every window of honest work and attacks under vLLM, and submissions under calibrated Hugging Face."""
    worker = exact.worker
    others = worker.draw_requests(CALIBRATION, seed=99)
    mixed.calibrate(others, worker.generate("true", others))
    requests, honest = generate_honest(worker, scale)
    exact.count_honest(requests, honest, prefix="exact_")
    mixed.count_honest(requests, honest, prefix="mixed.bf16.", match="token_match.bf16")
    inputs = build_inputs(worker, requests, honest, scale)
    for name, attack in (EXACT_ATTACKS | EXACT_OBSERVED_ATTACKS | RARE_ATTACKS | WHOLE_ATTACKS).items():
        completions = attack(inputs)
        if name in EXACT_ATTACKS or name in EXACT_OBSERVED_ATTACKS:
            measurement = f"{'detection' if name in EXACT_ATTACKS else 'observed'}.exact.window.{name}"
            exact.count_windows(measurement, inputs.requests, completions, short=f"observed.exact.short_window.{name}")
        if name in RARE_ATTACKS | WHOLE_ATTACKS:
            exact.count_submissions(f"observed.exact.submission.{name}", inputs.requests, completions)
        mixed.count_submissions(f"observed.mixed.bf16.submission.{name}", inputs.requests, completions)


def generate_honest(worker: SimulatedWorker, scale: float) -> tuple[list[GenerationRequest], list[Completion]]:
    """Draw requests and generate what an honest worker answers."""
    requests = worker.draw_requests(scale_count(SUBMISSIONS, scale), seed=1)
    return requests, worker.generate("true", requests)


def build_inputs(
    worker: SimulatedWorker, requests: list[GenerationRequest], honest: list[Completion], scale: float
) -> AttackInput:
    """Build the inputs of the attacks from the first requests."""
    count = scale_count(ATTACKED, scale) * SUBMISSION
    states = worker.read_states(requests[:count])
    return AttackInput(
        worker=worker, requests=requests[:count], honest=honest[:count], states=states, rng=random.Random(3)
    )


def main(arguments: Sequence[str]) -> int:
    options = build_parser(NAME, __doc__).parse_args(arguments)
    if options.one:
        run_one(NAME, options, run)
        return 0
    return conclude(NAME, options, BARS, arguments) if run_all(NAME, options) else 1
