"""Shares of attacks that a validator detects and of honest work that it rejects, and its CPU time over generation's.

Both sides run Hugging Face on a CPU: Qwen2 and Llama of a million parameters, submissions of 16 completions of up to
128 tokens.  float32 has the default thresholds, bfloat16 thresholds from other honest submissions of each model.

Measurements named "detection" have bars, those named "observed" have none.  "window" counts windows of 32 tokens judged
alone, "short_window" shorter ones, "curve.bf16.128.int8" runs of 128 tokens that suffice to reject.  Some short windows
stay undetected because a swap or another seed leaves them as an honest worker has them.

The table of the benchmark "schemes" is a part of this one.  "cost_rows" is the cost of three rows of 16, "cost_full"
that of all rows.

An n without a miss supports its rate at 95 % confidence: 300 supports 99 %, 4,153 supports 99.9 %, and 30,747 supports
1e-4.  The rate of stale_lr1e-6 depends on text and step: ruled tables in the text, or the smaller step of a trained
optimizer's state, bring it below its bar.  ARGS="--scale 0.1" takes a tenth of every n, without cost and "observed".
"""

import random
from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks.verification import schemes
from benchmarks.verification.attacks import (
    OBSERVED_ATTACKS,
    SUBMISSION,
    SUBMISSION_ATTACKS,
    WINDOW_ATTACKS,
    AttackInput,
)
from benchmarks.verification.cost import measure_cost
from benchmarks.verification.rejections import Counts, RejectionCounter, build_counter, split
from benchmarks.verification.runner import (
    SHORT,
    VerificationBars,
    build_parser,
    conclude,
    run_all,
    run_one,
    scale_count,
)
from covey.engines.base import GenerationRequest
from covey.engines.hf.engine import prepare_process
from covey.toploc.closeness import is_within
from covey.toploc.proofs import Bits, build_many, compare
from validator.calibration.calibrate import count_passes
from validator.distance_limits import find_breach
from validator.replay import RolloutDistances

NAME = "verification"
SUBMISSIONS = 150
"""Submissions of each architecture, number format and attack: 300 of both architectures."""
WINDOW_SUBMISSIONS = 48
"""Submissions of each architecture whose windows are judged alone: over 3,000 windows of both architectures."""
CALIBRATION = 40
"""Honest submissions of each architecture that only set the thresholds."""
CURVE = {32: 1, 128: 4, 512: 16}
"""Windows by the number of tokens that are checked together."""
CURVE_ATTACKS = ("int8", "int4", "stale_lr1e-5")
BF16_WINDOW_ATTACKS = tuple(name for name in WINDOW_ATTACKS if name not in OBSERVED_ATTACKS)
WINDOW_NAMES = (
    "other_model",
    "other_seed",
    "int8",
    "int4",
    "perturbed_1pct",
    "stale_lr1e-3",
    "stale_lr1e-5",
    "prompt_changed",
)
SUBMISSION_NAMES = ("temperature_07", "top_p_09", "best_of_4", "small_writes_large_proves", "truncated", "false_eos")
FORGERIES = ("constant", "profile", "shuffled", "channels", "previous_policy")
BARS = VerificationBars(
    rates={
        **schemes.BARS.rates,
        "detection.fp32.window.": (0.999, 3000),
        "detection.fp32.submission.": (0.99, 300),
        "detection.bf16.submission.": (0.99, 300),
    },
    names=(
        *schemes.BARS.names,
        *(f"detection.fp32.window.{name}" for name in (*WINDOW_NAMES, "stale_lr1e-6", "swapped_token")),
        *(f"detection.fp32.submission.{name}" for name in SUBMISSION_NAMES),
        *(f"detection.bf16.submission.{name}" for name in (*WINDOW_NAMES, *SUBMISSION_NAMES)),
    ),
    sizes={"honest_windows": 30_000, **{f"forgery_passes.{name}": 3_000 for name in FORGERIES}},
    most={**schemes.BARS.most, "cost_full": 0.3, "cost_audit_10": 0.04, "cost_rows": 0.08},
)


def run(architecture: str, dtype: str, scale: float) -> Counts:
    """Count honest work, every attack and every forgery of one architecture in one number format."""
    counter, short, attacks = build_counter(architecture, dtype), SHORT[dtype], dict(SUBMISSION_ATTACKS)
    worker = counter.worker
    if short == "bf16":
        requests = worker.draw_requests(CALIBRATION, seed=99)
        counter.calibrate(requests, worker.generate("true", requests))
        attacks |= {name: WINDOW_ATTACKS[name] for name in BF16_WINDOW_ATTACKS}
    requests = worker.draw_requests(scale_count(SUBMISSIONS, scale), seed=1)
    honest, states = worker.generate("true", requests), worker.read_states(requests)
    counter.count_honest(requests, honest)
    inputs = AttackInput(worker=worker, requests=requests, honest=honest, states=states, rng=random.Random(2))
    completions = scale_count(WINDOW_SUBMISSIONS, scale) * SUBMISSION
    if short == "fp32":
        first = inputs.take(completions, seed=3)
        for name, attack in WINDOW_ATTACKS.items():
            long, shorter = f"detection.fp32.window.{name}", f"observed.fp32.short_window.{name}"
            counter.count_windows(long, first.requests, attack(first), short=shorter)
    for name, attack in attacks.items():
        observer = partial(count_curve, counter, name) if short == "bf16" and name in CURVE_ATTACKS else None
        counter.count_submissions(f"detection.{short}.submission.{name}", requests, attack(inputs), observer)
    if scale >= 1:
        first = inputs.take(scale_count(SUBMISSIONS // 3, scale) * SUBMISSION, seed=4)
        for name, attack in OBSERVED_ATTACKS.items():
            counter.count_submissions(f"observed.{short}.submission.{name}", first.requests, attack(first))
    count_forgeries(counter, requests[:completions], states[:completions])
    return counter.counts | schemes.run_table(architecture, dtype, scale)


def count_curve(counter: RejectionCounter, name: str, distances: Sequence[RolloutDistances]) -> None:
    """Count the parts of a submission that suffice to reject it."""
    windows = [window for rollout in distances for window in split(rollout)]
    for tokens, size in CURVE.items():
        for start in range(0, len(windows) - size + 1, size):
            breach = find_breach(windows[start : start + size], counter.rules)
            counter.count(f"curve.bf16.{tokens}.{name}", breach is not None, 1)


def count_forgeries(counter: RejectionCounter, requests: Sequence[GenerationRequest], states: Sequence[Bits]) -> None:
    """Count proofs without a forward pass of this policy that pass on honest windows.

    Proofs of the previous policy are judged alone.  Of a smaller step than this one, many would pass this check; the
    checks of log-probabilities and of tokens reject them.
    """
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
    parser = build_parser(NAME, __doc__)
    parser.add_argument("--cost", action="store_true", help="the cost alone; rates are taken from the last run")
    options = parser.parse_args(arguments)
    if options.one:
        run_one(NAME, options, run)
        return 0
    if not options.cost and not run_all(NAME, options):
        return 1
    prepare_process(threads=1)
    measure_more = measure_cost if options.scale >= 1 else tuple
    return conclude(NAME, options, BARS, arguments, measure_more, build=schemes.build_table)
