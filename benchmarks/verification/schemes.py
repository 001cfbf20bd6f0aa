"""How often each cheat is caught by drawn rows of every submission, and by whole replays of a fifth, at one cost.

The new scheme has the parameters' defaults: `audit_rows` rows of every submission, by one validator, and a share
`audit_rate` of the submissions whole, by a quorum.  The old scheme replays only whole submissions.  Its share costs the
validators as many tokens, prompts included, and is measured as `old_rate`.

"caught" is the share of submissions that are rejected.  "until" is the mean number of submissions until a worker that
always cheats is found: a replay rejects, or, in the new scheme, it is above its running sums.  "none" says that most
are not found in 300 submissions.  "within_10" is the share of such workers that are found within ten.  A newcomer
cheats from its first submission on, of which eight are replayed whole.  "nodes_above" is the number of honest nodes
that are above their sums in 2,000 submissions.  The peer is the old scheme.  Each submission is drawn 64 times, and
workers choose among the submissions, so n is the number of submissions or of workers.

"cost_rows" is a validator's CPU time over a worker's if it replays 3 rows of 16, and "cost_full" if it replays all.

Both sides run Hugging Face on a CPU, as in the benchmark "verification", of which this is a part.
ARGS="--scale 0.1" takes a tenth of every n.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurement import Measurement
from benchmarks.verification.attacks import SUBMISSION
from benchmarks.verification.cheating_engines import (
    CutPrompt,
    FalseText,
    Fp8Cache,
    GreedyFirst,
    ScaledTemperature,
    ShiftedRope,
    SomeRows,
    SpeculativeEngine,
    SteeredEngine,
    TopK,
    ZeroedHead,
)
from benchmarks.verification.cost import measure_cost
from benchmarks.verification.node_histories import QUORUM, Evidence, count_until_seen
from benchmarks.verification.rejections import Counts, RejectionCounter, build_counter
from benchmarks.verification.runner import (
    SHORT,
    VerificationBars,
    build_measurements,
    build_parser,
    conclude,
    run_all,
    run_one,
    scale_count,
)
from covey.demo.cheats import PartialInt8
from covey.engines.base import Completion, Engine, GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
from covey.protocol.ids import Hash
from covey.protocol.params import VerificationParams
from covey.protocol.running_sums import Sums
from covey.protocol.seeding import draw_rows
from covey.protocol.submission_file.rows import Rollout
from validator.checks import sum_distances
from validator.distance_limits import find_breach
from validator.replay import RolloutDistances

NAME = "schemes"
CHEATED = 30
"""Submissions of each cheat, architecture and number format: 60 of both architectures."""
HONEST = 60
"""Honest submissions of each architecture and number format, from which honest nodes choose theirs."""
CALIBRATION = 96
"""Honest submissions of each architecture that only set the thresholds in bfloat16."""
BATCH = 480
"""Completions that a worker's engine generates together."""
DRAWS = 64
"""Draws of rows of each submission."""
WORKERS = 50
"""Workers that always cheat, for each cheat, architecture and number format."""
LONGEST = 300
"""Submissions after which a worker that was not caught stops."""
NODES, NODE_SUBMISSIONS = 10, 2000
"""Honest nodes of each architecture and number format, and the submissions of each, chosen among those measured."""
SOON = 10
"""Submissions within which a worker is caught soon."""
TABLE = "table."
"""Beginning of the names that `build_table` turns into measurements."""
RULES = VerificationParams()
"""Rules of a new pool, whose numbers of rows and rates are the new scheme."""
WHOLE_RATE, CONFIRM_RATE = RULES.audit_rate, RULES.confirm_rate


def _run(dtype: str) -> HuggingFaceEngine:
    return HuggingFaceEngine(dtype=dtype, max_batch=BATCH)


CHEATS: dict[str, Callable[[str], Engine]] = {
    "int8_last_1": lambda dtype: PartialInt8(_run(dtype), layers=1),
    "int8_last_2": lambda dtype: PartialInt8(_run(dtype), layers=2),
    "int8_last_3": lambda dtype: PartialInt8(_run(dtype), layers=3),
    "int8_all_4": lambda dtype: PartialInt8(_run(dtype), layers=4),
    "int8_in_one_row": lambda dtype: SomeRows(_run(dtype), PartialInt8(_run(dtype), layers=4), every=SUBMISSION),
    "fp8_cache": lambda dtype: Fp8Cache(_run(dtype)),
    "zeroed_head": lambda dtype: ZeroedHead(_run(dtype)),
    "rope_1pct": lambda dtype: ShiftedRope(_run(dtype), by=0.01),
    "steered_01pct": lambda dtype: SteeredEngine(by=0.001, dtype=dtype, max_batch=BATCH),
    "steered_1pct": lambda dtype: SteeredEngine(by=0.01, dtype=dtype, max_batch=BATCH),
    "steered_5pct": lambda dtype: SteeredEngine(by=0.05, dtype=dtype, max_batch=BATCH),
    "cut_prompt": lambda dtype: CutPrompt(_run(dtype), tokens=16),
    "temperature_098": lambda dtype: ScaledTemperature(_run(dtype), scale=0.98),
    "temperature_102": lambda dtype: ScaledTemperature(_run(dtype), scale=1.02),
    "top_k_50": lambda dtype: TopK(_run(dtype), count=50),
    "greedy_first": lambda dtype: GreedyFirst(_run(dtype)),
    "speculative": lambda dtype: SpeculativeEngine(least=0.3, dtype=dtype, max_batch=BATCH),
    "false_text_in_all": lambda dtype: FalseText(_run(dtype), every=1),
    "false_text_in_half": lambda dtype: FalseText(_run(dtype), every=2),
    "false_text_in_one_row": lambda dtype: FalseText(_run(dtype), every=SUBMISSION),
}
"""Engines of workers that cheat, by the name of the cheat, for a number format."""
SOON_NAMES = tuple(name for name in CHEATS if name.startswith("int8"))
"""Cheats of which "within_10" is shown."""
BARS = VerificationBars(
    rates={
        "caught.fp32.false_text_in_all": (1.0, 2 * CHEATED),
        "caught.bf16.false_text_in_all": (1.0, 2 * CHEATED),
        "within_10.fp32.int8_last_2": (0.99, 2 * WORKERS),
        "within_10.bf16.int8_last_2": (0.99, 2 * WORKERS),
    },
    names=(
        *(f"caught.{short}.{name}" for short in SHORT.values() for name in (*CHEATS, "honest")),
        *(f"within_10.{short}.int8_last_2" for short in SHORT.values()),
        *(f"nodes_above.{short}" for short in SHORT.values()),
        "false_rejects",
        "false_slashes",
    ),
    most={name: 0.0 for short in SHORT.values() for name in (f"caught.{short}.honest", f"nodes_above.{short}")}
    | {"cost_rows": 0.08, "cost_full": 0.333},
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayedSubmission:
    """A submission whose rows are all replayed. Any part of them can be judged."""

    rollouts: Sequence[Rollout]
    distances: Sequence[RolloutDistances]
    """Distances of each row. Empty if the cheap checks reject the submission."""

    def count_tokens(self, rows: Sequence[int]) -> int:
        """Count the tokens of a replay of these rows: the completions and each distinct prompt once."""
        chosen = [self.rollouts[row] for row in rows]
        return sum(len(row.tokens) for row in chosen) + sum(map(len, {row.prompt for row in chosen}))


def run(architecture: str, dtype: str, scale: float) -> Counts:
    """Count honest work and every cheat of one architecture in one number format."""
    counter = build_counter(architecture, dtype, batch=BATCH)
    worker = counter.worker
    if dtype == "bfloat16":
        requests = worker.draw_requests(CALIBRATION, seed=99)
        counter.calibrate(requests, worker.generate("true", requests))
    requests = worker.draw_requests(scale_count(HONEST, scale), seed=1)
    honest = worker.generate("true", requests)
    counter.count_honest(requests, honest)
    count_schemes(counter, dtype, requests, honest, scale)
    return counter.counts


def run_table(architecture: str, dtype: str, scale: float) -> Counts:
    """Count what the table needs, without the counts of other benchmarks' names."""
    counts = run(architecture, dtype, scale)
    return {name: each for name, each in counts.items() if name.startswith((TABLE, "nodes_above."))}


def count_schemes(
    counter: RejectionCounter,
    dtype: str,
    requests: Sequence[GenerationRequest],
    honest: Sequence[Completion],
    scale: float,
) -> None:
    """Count honest work and every cheat under both schemes."""
    table = SchemeTable(counter, SHORT[dtype])
    table.count("honest", requests, honest, honest)
    count = scale_count(CHEATED, scale) * SUBMISSION
    requests, honest = requests[:count], honest[:count]
    for name, build in CHEATS.items():
        engine = build(dtype)
        engine.load_policy(counter.worker.folder / "true", 0)
        made = engine.generate(requests, temperature=1.0, capture=counter.worker.capture)
        table.count(name, requests, made, honest)


class SchemeTable:
    """Counts of one validator's rejections under both schemes. The first work that it counts must be honest."""

    def __init__(self, counter: RejectionCounter, short: str) -> None:
        self.counter, self.short = counter, short
        self._share = math.nan
        """Tokens of a replay of drawn rows over those of a whole replay, which honest work sets."""

    def count(
        self,
        name: str,
        requests: Sequence[GenerationRequest],
        completions: Sequence[Completion],
        honest: Sequence[Completion],
    ) -> None:
        """Count what both schemes reject of some submissions, in which `honest` is what honest workers give."""
        submissions = list(self._replay(requests, completions))
        drawn = [list(_draw(i, len(each.rollouts))) for i, each in enumerate(submissions)]
        if name == "honest":
            self._count_costs(submissions, drawn)
        pairs = zip(completions, honest, strict=True)
        self._count("changed", name, sum(one.tokens != other.tokens for one, other in pairs), len(completions))
        cheap = np.array([not each.distances for each in submissions])
        evidence = self._judge(submissions, drawn)
        whole, rows = evidence.whole, evidence.rows
        self._count("cheap", name, cheap.sum(), cheap.size)
        self._count("whole", name, whole.sum(), whole.size)
        self._count("rows", name, rows.sum(), rows.size)
        self._count("whole_only", name, (whole[:, None] & ~rows).sum(), rows.size)
        print(f"{self.counter.name}: {name}: rows {rows.mean():.3f}, whole {whole.mean():.3f}", flush=True)
        rng = np.random.default_rng([*name.encode()])
        if name == "honest":
            self._count_nodes_above(evidence, rng)
        else:
            self._count_workers(name, evidence, cheap, rng)

    def _judge(self, submissions: Sequence[ReplayedSubmission], drawn: Sequence[Sequence[tuple[int, ...]]]) -> Evidence:
        pairs = list(zip(submissions, drawn, strict=True))
        return Evidence(
            whole=np.array([self._rejects(each, range(len(each.rollouts))) for each in submissions]),
            rows=np.array([[self._rejects(each, rows) for rows in draws] for each, draws in pairs]),
            whole_sums=[_sum(each, range(len(each.rollouts))) for each in submissions],
            row_sums=[[_sum(each, rows) for rows in draws] for each, draws in pairs],
        )

    def _count_workers(self, name: str, evidence: Evidence, cheap: NDArray[np.bool_], rng: np.random.Generator) -> None:
        """Count after how many submissions workers that always cheat are caught, or above their running sums."""
        limits, rates = self.counter.rules.thresholds, {"new": WHOLE_RATE, "old": compute_old_rate(self._share)}
        old = replace(evidence, rows=cheap[:, None], row_sums=[[{}]] * len(cheap))
        played = {"new": (evidence, 0), "old": (old, 0), "newcomer": (evidence, RULES.newcomer_submissions)}
        for scheme, (each, newcomer) in played.items():
            rate, has_sums = rates["old" if scheme == "old" else "new"], scheme != "old"
            for _ in range(WORKERS if scheme != "newcomer" or name in SOON_NAMES else 0):
                first, is_above = count_until_seen(
                    each, limits, whole_rate=rate, most=LONGEST, rng=rng, has_sums=has_sums, newcomer=newcomer
                )
                self._count(f"until_{scheme}", name, min(first, LONGEST), 1)
                self._count(f"missed_{scheme}", name, first > LONGEST, 1)
                self._count(f"soon_{scheme}", name, first <= SOON, 1)
                self._count(f"above_{scheme}", name, is_above, 1)

    def _count_nodes_above(self, honest: Evidence, rng: np.random.Generator) -> None:
        """Count honest nodes that are ever above their running sums.  Rejected work is counted elsewhere."""
        kept = replace(honest, whole=np.zeros_like(honest.whole), rows=np.zeros_like(honest.rows))
        for _ in range(NODES):
            first, _ = count_until_seen(
                kept, self.counter.rules.thresholds, whole_rate=WHOLE_RATE, most=NODE_SUBMISSIONS, rng=rng
            )
            self.counter.count(f"nodes_above.{self.short}", first <= NODE_SUBMISSIONS, 1)

    def _replay(
        self, requests: Sequence[GenerationRequest], completions: Sequence[Completion]
    ) -> Iterator[ReplayedSubmission]:
        for rollouts in self.counter.worker.build_submissions(requests, completions):
            distances = self.counter.measure(rollouts) if self.counter.ends_well(rollouts) else []
            yield ReplayedSubmission(rollouts=rollouts, distances=distances)

    def _rejects(self, submission: ReplayedSubmission, rows: Sequence[int]) -> bool:
        """Return whether cheap checks or a replay of these rows reject the submission."""
        if not submission.distances:
            return True
        return find_breach([submission.distances[row] for row in rows], self.counter.rules) is not None

    def _count_costs(self, honest: Sequence[ReplayedSubmission], drawn: Sequence[Sequence[tuple[int, ...]]]) -> None:
        """Count the tokens of a replay of drawn rows, and of whole submissions."""
        whole = DRAWS * sum(each.count_tokens(range(len(each.rollouts))) for each in honest)
        rows = sum(each.count_tokens(rows) for each, draws in zip(honest, drawn, strict=True) for rows in draws)
        self.counter.count(f"{TABLE}{self.short}.cost.tokens", rows, whole)
        self._share = rows / whole

    def _count(self, what: str, name: str, hits: float, n: int) -> None:
        self.counter.count(f"{TABLE}{self.short}.{name}.{what}", hits, n)


def _draw(number: int, rows: int) -> Iterator[tuple[int, ...]]:
    """Yield the drawn rows of a submission under different blocks."""
    receipt = _hash(f"receipt {number}")
    for block in range(DRAWS):
        yield draw_rows(receipt, _hash(f"block {block}"), count=RULES.audit_rows, rows=rows)


def _hash(text: str) -> Hash:
    return Hash("0x" + hashlib.sha256(text.encode()).hexdigest())


def _sum(submission: ReplayedSubmission, rows: Sequence[int]) -> Sums:
    return sum_distances(dict(enumerate(submission.distances)), rows) if submission.distances else {}


def compute_old_rate(share: float) -> float:
    """Return the share of submissions whose whole replay costs as many tokens as the new scheme.

    `share` is that of the tokens which a replay of drawn rows computes.
    """
    cost = WHOLE_RATE * QUORUM + (1 - WHOLE_RATE) * (1 + CONFIRM_RATE) * share
    return cost / QUORUM


def build_table(counts: Counts) -> list[Measurement]:
    """Build the measurements of both schemes, and those of all other counts."""
    parts: dict[tuple[str, str], dict[str, tuple[int, int]]] = defaultdict(dict)
    for name, (hits, n) in counts.items():
        if name.startswith(TABLE):
            _, short, cheat, part = name.split(".")
            parts[short, cheat][part] = hits, n
    measurements = build_measurements({name: each for name, each in counts.items() if not name.startswith(TABLE)})
    for short in dict.fromkeys(short for short, _ in parts):
        replayed, whole = parts.pop((short, "cost"))["tokens"]
        share = replayed / whole
        measurements += [
            Measurement(name=f"rows_tokens.{short}", value=share, unit="rate", n=parts[short, "honest"]["whole"][1]),
            Measurement(name=f"old_rate.{short}", value=compute_old_rate(share), unit="rate", n=1),
        ]
    for (short, cheat), values in parts.items():
        share = next(each.value for each in measurements if each.name == f"old_rate.{short}")
        measurements += _build_row(f"{short}.{cheat}", values, share, is_soon=cheat in SOON_NAMES)
    return measurements


def _build_row(
    name: str, values: Mapping[str, tuple[int, int]], old_rate: float, *, is_soon: bool
) -> Iterator[Measurement]:
    """Yield the measurements of one cheat in one number format."""
    share = {part: hits / n for part, (hits, n) in values.items()}
    new = share["rows"] + WHOLE_RATE * share["whole_only"]
    old = share["cheap"] + old_rate * (share["whole"] - share["cheap"])
    n = values["whole"][1]
    changed = f"; {share['changed']:.0%} of completions changed" if share["changed"] else ""
    peer = f"old {old:.1%}; whole {share['whole']:.0%}; rows {share['rows']:.1%}{changed}"
    yield Measurement(name=f"caught.{name}", value=new, unit="rate", n=n, peer=peer)
    if "until_new" not in share:
        return
    workers = values["until_new"][1]
    until = {
        scheme: math.nan if share[f"missed_{scheme}"] > 0.5 else share[f"until_{scheme}"] for scheme in ("old", "new")
    }
    peer = "old none" if math.isnan(until["old"]) else f"old {until['old']:.1f}"
    peer += f"; {share['above_new']:.0%} by running sums" if share["above_new"] else ""
    yield Measurement(name=f"until.{name}", value=until["new"], unit="submissions", n=workers, peer=peer)
    if is_soon:
        peer = f"old {share['soon_old']:.1%}; newcomer {share['soon_newcomer']:.1%}"
        yield Measurement(name=f"within_10.{name}", value=share["soon_new"], unit="rate", n=workers, peer=peer)


def main(arguments: Sequence[str]) -> int:
    options = build_parser(NAME, __doc__).parse_args(arguments)
    if options.one:
        run_one(NAME, options, run)
        return 0
    if not run_all(NAME, options):
        return 1
    prepare_process(threads=1)
    measure = partial(measure_cost, with_large=False) if options.scale >= 1 else tuple
    return conclude(NAME, options, BARS, arguments, measure, build=build_table)
