"""Expected loss over expected gain of the worst cheat in simulated campaigns, with validators of many kinds.

Terms and parameters are those of the shipped pools.  The panel is the coordinator's own code, which decides for each
order of the validators.  A strategy falsifies some rows or makes small differences in all rows, submits in waves until
the draw shows a catch, and then fills the limit of undrawn pay.  All combinations are searched.  Names give the
validators and the pool.  `_text` is false text alone, and `found_1_of_2` a small difference that half of the whole
replays find.

These are the assumptions.  A cheat begins with a good record, which cost it honest work.  It gains the pay of the rows
that it falsifies.  It knows at once what the draw has caught.  Epochs close when it suits the cheat.  Undrawn work
counts against its limit until the verdict, and rejected work leaves the limit at once.  Nodes of one contributor share
limit, suspension and cases, so that many nodes only make waves larger.  Honest validators find the same.  A whole
replay finds false text always, and drawn rows find it if a false row is among them.  Drawn rows never find a small
difference.  Every case that a quorum with bonds signs is executed.

`line.` compares numbers of drawn rows at an equal number of replayed rows per submission, over all validators.  There
the chances of finding int8 in all MLPs and in all linear layers of the last half follow from measured means of a sum.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import covey
from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.verification.campaigns import (
    Strategy,
    compute_chances,
    find_worst,
    list_strategies,
    run_campaigns,
)
from benchmarks.verification.panel_outcomes import Behavior, Fate, Fates, compute_fates
from covey.chain.deterrence import Deterrence, SubmissionCheat, compute_deterrence
from covey.chain.structs import PoolTerms
from covey.console.pool_file import build_params, read_document, read_table
from covey.console.pool_terms import read_terms
from covey.protocol.ids import Address
from covey.protocol.params import PoolParams

NAME = "deterrence"
CAMPAIGNS = 20_000
SEED = 75
POOLS = ("pool", "intellect2-pool")
"""Shipped files in `configs`, without their ending."""
TOKEN = Address("0x" + "00" * 20)
H = Behavior.HONEST
PANELS = {
    "every_replay": (H, H, H),
    "bondless": (H, H, Behavior.BONDLESS),
    "leaving": (H, H, Behavior.LEAVING),
    "silent": (H, H, Behavior.SILENT),
    "mute": (H, H, Behavior.MUTE),
    "hostile": (H, H, Behavior.HOSTILE),
    "lazy": (H, H, Behavior.LAZY),
    "hostile_and_lazy": (H, Behavior.HOSTILE, Behavior.LAZY),
    "hostile_and_lazy_of_five": (H, H, H, Behavior.HOSTILE, Behavior.LAZY),
}
"""Validators by the name of a measurement."""
TEXTS = ("every_replay", "hostile", "hostile_and_lazy_of_five")
"""Panels against which the worst false text is measured, too."""
DETECTIONS = {"found_1_of_2": 1 / 2, "found_1_of_4": 1 / 4, "found_1_of_12": 1 / 12}
"""Shares of whole replays that find a small difference in all rows, by the name of a measurement."""
BARS = {"every_replay": Bar(least=3), "every_replay_text": Bar(least=3)} | {
    name: Bar(least=2)
    for panel in PANELS
    for name in (panel, f"{panel}_text")
    if panel not in ("every_replay", "hostile_and_lazy")
}
LINE = (0, 1, 2, 3, 4, 6, 8)
"""Numbers of drawn rows on the line of equal cost."""
INT8 = {"int8_all_mlps": 1.25, "int8_last_half": 0.78}
"""Sums of log-probability differences in bfloat16 over 16 completions, as a multiple of their limit, by the cheat."""
HONEST_SUM = 0.58
"""The same multiple of honest work.  The rest of the limit is Bernstein's margin."""
SUM_ROWS = 16
"""Number of completions of which those sums were measured."""


def read_pool(name: str) -> tuple[PoolTerms, PoolParams]:
    """Read terms and parameters of a shipped pool, without its data sets."""
    file = Path(covey.__file__).resolve().parents[1] / "configs" / f"{name}.toml"
    document = read_document(file)
    params = build_params(file, document, {})
    return read_terms(file, read_table(file, document, "terms"), TOKEN, params)[0], params


def measure_worst(
    name: str,
    terms: Deterrence,
    fates: Fates,
    params: PoolParams,
    *,
    count: int,
    rng: np.random.Generator,
    is_text: bool = False,
) -> tuple[Measurement, Strategy | None]:
    """Measure the factor of the worst strategy, with false text alone if `is_text`.

    It is 0 if a cheat is never caught.
    """
    rules = params.verification
    chances = {
        cheat: compute_chances(fates, cheat, audit_rate=terms.audit_rate, confirm_rate=rules.confirm_rate)
        for cheat in terms.list_cheats()
    }
    strategies = list_strategies(terms, sorted({1, min(10, terms.submissions), terms.submissions}), is_text=is_text)
    if any(run_campaigns(each, terms, chances, count=1, rng=rng) is None for each in strategies if each.then is None):
        return Measurement(name=name, value=0.0, unit="ratio", n=count, peer="a cheat is never caught"), None
    worst, totals = find_worst(strategies, terms, chances, count=count, rng=rng)
    formula = "" if is_text else f"formula {terms.factor:.2f}; "
    peer = f"{formula}ahead in {100 * totals.ahead:.1f} %; {worst}"
    return Measurement(name=name, value=totals.factor, unit="ratio", n=count, peer=peer), worst


def measure_pool(pool: str, panels: Sequence[str], count: int, rng: np.random.Generator) -> Iterator[Measurement]:
    """Measure some kinds of validators and every detection rate in a shipped pool."""
    terms, params = read_pool(pool)
    whole = compute_deterrence(terms, params)
    for name in panels:
        behaviors = PANELS[name]
        fates = compute_fates(params.model_copy(update={"quorum": len(behaviors) // 2 + 1}), behaviors)
        yield measure_worst(f"{name}.{pool}", whole, fates, params, count=count, rng=rng)[0]
        if name in TEXTS:
            text, _ = measure_worst(f"{name}_text.{pool}", whole, fates, params, count=count, rng=rng, is_text=True)
            yield replace(text, peer=f"{_describe_all_fake(whole, fates, params)}; {text.peer}")
    fates = compute_fates(params, PANELS["every_replay"])
    for name, detection in DETECTIONS.items():
        found = compute_deterrence(terms, params, detection=detection)
        yield measure_worst(f"{name}.{pool}", found, fates, params, count=count, rng=rng)[0]


def _describe_all_fake(terms: Deterrence, fates: Fates, params: PoolParams) -> str:
    """Describe how many submissions are caught whose text is false in all rows."""
    rate = params.verification.confirm_rate
    chances = compute_chances(fates, terms.list_false_texts()[-1], audit_rate=terms.audit_rate, confirm_rate=rate)
    return f"{100 * chances[Fate.CASE]:.0f} % of all-fake submissions caught"


def compute_cost(params: PoolParams, *, audit_rate: float, drawn_rows: int) -> float:
    """Compute the expected number of rows that validators replay of a submission, all of them together."""
    confirmed = 1 + (params.verification.confirm_rate if params.quorum > 1 else 0)
    return audit_rate * params.quorum * params.rollouts_per_task + (1 - audit_rate) * drawn_rows * confirmed


def compute_rate(params: PoolParams, *, cost: float, drawn_rows: int) -> float:
    """Compute the rate of whole replays at which submissions with some drawn rows cost `cost` rows."""
    least = compute_cost(params, audit_rate=0.0, drawn_rows=drawn_rows)
    return (cost - least) / (compute_cost(params, audit_rate=1.0, drawn_rows=drawn_rows) - least)


def measure_line(pool: str, count: int, rng: np.random.Generator) -> Iterator[Measurement]:
    """Measure the pairs of drawn rows and whole rate that cost as much as the pool's own pair."""
    terms, params = read_pool(pool)
    rules = params.verification
    cost = compute_cost(params, audit_rate=rules.audit_rate, drawn_rows=rules.audit_rows)
    fates = compute_fates(params, PANELS["every_replay"])
    for drawn in LINE:
        rate = compute_rate(params, cost=cost, drawn_rows=drawn)
        if rate <= 0:
            continue
        changed = params.model_copy(
            update={"verification": rules.model_copy(update={"audit_rate": rate, "audit_rows": drawn})}
        )
        found = compute_deterrence(terms, changed)
        name = f"line.{pool}.rows_{drawn}"
        yield Measurement(name=f"{name}.audit_rate", value=rate, unit="ratio", n=1, peer=f"{cost:.2f} rows")
        worst, _ = measure_worst(f"{name}.loss_over_gain", found, fates, changed, count=count, rng=rng)
        yield worst
        half = compute_deterrence(terms, changed, detection=0.5)
        yield measure_worst(f"{name}.found_1_of_2", half, fates, changed, count=count, rng=rng)[0]
        yield from _measure_cheats(name, found, count, rng)


def _measure_cheats(name: str, terms: Deterrence, count: int, rng: np.random.Generator) -> Iterator[Measurement]:
    """Measure the submissions until each cheat is caught, and the false rows that are learned until then."""
    texts = {cheat.false_rows: cheat for cheat in terms.list_false_texts()}
    named = {"all_fake": texts[terms.rows], "half_fake": texts[terms.rows // 2], "one_row": texts[1]}
    differences = {"difference": terms.build_difference()} | {
        label: build_int8(terms, ratio) for label, ratio in INT8.items()
    }
    for label, cheat in (named | differences).items():
        caught = cheat.compute_caught(terms.audit_rate)
        until, peer = rng.geometric(caught, count), f"{100 * caught:.3g} % of submissions"
        yield Measurement(
            name=f"{name}.submissions.{label}", value=float(until.mean()), unit="count", n=count, peer=peer
        )
    learned = {
        rows: float(rows * (rng.geometric(cheat.compute_caught(terms.audit_rate), count) - 1).mean())
        for rows, cheat in texts.items()
        if rows is not None
    }
    most = max(learned, key=lambda rows: learned[rows])
    yield Measurement(
        name=f"{name}.poisoned_rows", value=learned[most], unit="count", n=count, peer=f"{most} rows of each submission"
    )


def build_int8(terms: Deterrence, ratio: float) -> SubmissionCheat:
    """Build a cheat that a sum finds. `ratio` is its mean over 16 completions, as a multiple of the limit."""
    whole, drawn = (compute_sum_detection(ratio, rows) for rows in (terms.rows, terms.drawn_rows))
    return SubmissionCheat(false_rows=None, share=1.0, by_replay=whole, by_rows=drawn)


def compute_sum_detection(ratio: float, rows: int) -> float:
    """Compute the probability that the sum over some completions exceeds its limit, for a normal distribution of it.

    The mean grows with the number of completions, and the margin of the limit with its root.  At a false-reject rate
    of 1e-6 the margin is about 5.3 standard deviations.
    """
    if rows == 0:
        return 0.0
    share, margin = rows / SUM_ROWS, 1 - HONEST_SUM
    limit = HONEST_SUM * share + margin * math.sqrt(share)
    deviation = margin * math.sqrt(share) / math.sqrt(2 * math.log(1e6))
    return math.erfc((limit - ratio * share) / deviation / math.sqrt(2)) / 2


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("make bench NAME=deterrence", description=__doc__)
    parser.add_argument(
        "--campaigns", type=int, default=CAMPAIGNS, help=f"campaigns of each strategy; default: {CAMPAIGNS}"
    )
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(SEED)
    measured = [each for pool in POOLS for each in measure_pool(pool, list(PANELS), options.campaigns, rng)]
    for pool in POOLS:
        measured += measure_line(pool, options.campaigns, rng)
    measurements = set_bars(measured, BARS)
    return finish(NAME, measurements, find_misses(measurements), arguments)
