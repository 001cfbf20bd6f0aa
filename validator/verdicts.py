"""Judges submissions and builds the verdicts to sign.

If a submission could not be checked, the verdict is unknown, which neither pays nor slashes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from covey.errors import ProtocolError, TransientError
from covey.protocol import eip712
from covey.protocol.evidence import LIVE_GROUPS
from covey.protocol.ids import Address, Hash
from covey.protocol.messages import Receipt, Verdict
from covey.protocol.submission_file.rows import count_units
from covey.protocol.verdict import Decision, Judgement, compute_severity
from covey.runtime.log import get_logger
from validator.checks import (
    CHEAP_CHECKS,
    CHECKS,
    ROW_CHECKS,
    Check,
    CheckTools,
    SubmissionClaim,
    check_rows,
    measure_drawn,
)

MACHINE_FAILURES = (RuntimeError, MemoryError, OSError)
"""Errors caused by this machine, for example if it is out of memory or its device is gone."""
FAILURES = (TransientError, ProtocolError, *MACHINE_FAILURES, ArithmeticError, LookupError, TypeError, ValueError)
"""Errors after which the judgement is unknown."""


class PartialJudgement(NamedTuple):
    """What the checks up to some point have found."""

    decided: Judgement | None = None
    """A rejection, or unknown after a failure. None: the next check runs."""
    unclear: Judgement | None = None
    """The first unknown result, which is the judgement if no later check rejects."""


_NOTHING = PartialJudgement()


def judge(claim: SubmissionClaim, tools: CheckTools, *, full: bool) -> Judgement:
    """Run the checks in order, with a replay of all rows if `full`, else of the drawn ones. A rejection decides.

    After an unknown result the later checks still run, and a rejection by one of them decides. Otherwise faked work
    whose grading hits a limit would never be replayed.

    A failure of this machine (out of memory, a lost device, a store that does not respond) results in unknown. So does
    input that the engine's arithmetic cannot process. Neither ends the validator's process.
    """
    return _conclude(_run(CHECKS if full else ROW_CHECKS, claim, tools), claim, tools)


def check_cheaply(claim: SubmissionClaim, tools: CheckTools) -> PartialJudgement:
    """Run the checks before the replay. `replay_together` completes the judgement."""
    return _run(CHEAP_CHECKS, claim, tools)


def replay_together(checked: Sequence[tuple[SubmissionClaim, PartialJudgement]], tools: CheckTools) -> list[Judgement]:
    """Replay the drawn rows of checked submissions of one policy and one contract in one pass, and judge each.

    Each judgement is that of `judge`. If the common pass fails, each submission is replayed alone, so that none
    changes the judgement of another.
    """
    replayed = [claim for claim, finding in checked if finding.decided is None]
    if len(replayed) > 1:
        try:
            measure_drawn(replayed, tools)
        except FAILURES as error:
            get_logger().warning(
                "rows of several submissions could not be replayed together, replaying those of each alone",
                tasks=[claim.receipt.task for claim in replayed],
                error=f"{type(error).__name__}: {error}",
            )
    return [_conclude(_run((check_rows,), claim, tools, after=finding), claim, tools) for claim, finding in checked]


def _run(
    checks: Sequence[Check], claim: SubmissionClaim, tools: CheckTools, *, after: PartialJudgement = _NOTHING
) -> PartialJudgement:
    """Run checks in order until one decides, `after` those that gave a finding."""
    decided, unclear = after
    try:
        for check in checks if decided is None else ():
            judgement = check(claim, tools)
            if judgement is not None and judgement.decision is Decision.UNKNOWN:
                unclear = unclear or judgement
            elif judgement is not None:
                return PartialJudgement(judgement)
    except FAILURES as error:
        get_logger().error(
            "check could not be completed", task=claim.receipt.task, error=f"{type(error).__name__}: {error}"
        )
        return PartialJudgement(Judgement.unknown(error=type(error).__name__))
    return PartialJudgement(decided, unclear)


def _conclude(finding: PartialJudgement, claim: SubmissionClaim, tools: CheckTools) -> Judgement:
    """Return the judgement after the last check."""
    if finding.decided is not None:
        return finding.decided
    units = min(count_units(claim.rollouts), tools.params.max_task_units)
    passed = finding.unclear or Judgement.accept(units, **{LIVE_GROUPS: claim.live_groups})
    return replace(passed, sums=claim.sums)


def build_verdict(
    judgement: Judgement,
    receipt: Receipt,
    *,
    is_whole: bool,
    evidence_hash: Hash,
    validator: Address,
    now: float,
    seconds: int,
) -> Verdict:
    """Return the verdict to sign. It expires at `now + seconds`, its `deadline`.

    `is_whole` says whether the order was to replay all rows.
    """
    return Verdict(
        pool=receipt.pool,
        receipt_hash=eip712.compute_struct_hash(receipt),
        work_key=receipt.work_key,
        validator=validator,
        outcome=int(judgement.decision),
        reason=int(judgement.reason),
        severity=int(compute_severity(judgement.decision, judgement.reason, is_whole=is_whole)),
        units=judgement.units if judgement.decision is Decision.ACCEPT else 0,
        evidence_hash=evidence_hash,
        deadline=int(now) + seconds,
    )
