"""Judges a submission and builds the verdict to sign.

If a submission could not be checked, the verdict is unknown, which neither pays nor slashes.
"""

from dataclasses import replace

from covey.errors import ProtocolError, TransientError
from covey.protocol import eip712
from covey.protocol.evidence import LIVE_GROUPS
from covey.protocol.ids import Address, Hash
from covey.protocol.messages import Receipt, Verdict
from covey.protocol.submission_file.rows import count_units
from covey.protocol.verdict import Decision, Judgement
from covey.runtime.log import get_logger
from validator.checks import CHECKS, ROW_CHECKS, CheckTools, SubmissionClaim

MACHINE_FAILURES = (RuntimeError, MemoryError, OSError)
"""Errors caused by this machine, for example if it is out of memory or its device is gone."""
FAILURES = (TransientError, ProtocolError, *MACHINE_FAILURES, ArithmeticError, LookupError, TypeError, ValueError)
"""Errors after which the judgement is unknown."""


def judge(claim: SubmissionClaim, tools: CheckTools, *, full: bool) -> Judgement:
    """Run the checks in order, with a replay of all rows if `full`, else of the drawn ones. A rejection decides.

    After an unknown result the later checks still run, and a rejection by one of them decides. Otherwise faked work
    whose grading hits a limit would never be replayed.

    A failure of this machine (out of memory, a lost device, a store that does not respond) results in unknown. So does
    input that the engine's arithmetic cannot process. Neither ends the validator's process.
    """
    unclear: Judgement | None = None
    try:
        for check in CHECKS if full else ROW_CHECKS:
            judgement = check(claim, tools)
            if judgement is not None and judgement.decision is Decision.UNKNOWN:
                unclear = unclear or judgement
            elif judgement is not None:
                return judgement
    except FAILURES as error:
        get_logger().error(
            "check could not be completed", task=claim.receipt.task, error=f"{type(error).__name__}: {error}"
        )
        return Judgement.unknown(error=type(error).__name__)
    units = min(count_units(claim.rollouts), tools.params.max_task_units)
    passed = unclear or Judgement.accept(units, **{LIVE_GROUPS: claim.live_groups})
    return replace(passed, sums=claim.sums)


def build_verdict(
    judgement: Judgement, receipt: Receipt, *, evidence_hash: Hash, validator: Address, now: float, seconds: int
) -> Verdict:
    """Return the verdict to sign. It expires at `now + seconds`, its `deadline`."""
    return Verdict(
        pool=receipt.pool,
        receipt_hash=eip712.compute_struct_hash(receipt),
        work_key=receipt.work_key,
        validator=validator,
        outcome=int(judgement.decision),
        reason=int(judgement.reason),
        severity=int(judgement.reason.severity),
        units=judgement.units if judgement.decision is Decision.ACCEPT else 0,
        evidence_hash=evidence_hash,
        deadline=int(now) + seconds,
    )
