"""Judges a submission and builds the verdict to be signed.

A submission that could not be checked is unknown: such a verdict neither pays nor slashes.
"""

from covey.errors import ProtocolError, TransientError
from covey.protocol import eip712
from covey.protocol.evidence import LIVE_GROUPS
from covey.protocol.ids import Address, Hash
from covey.protocol.messages import Receipt, Verdict
from covey.protocol.submission_file.rows import count_units
from covey.protocol.verdict import Decision, Judgement
from covey.runtime.log import get_logger
from validator.checks import CHEAP_CHECKS, CHECKS, CheckTools, SubmissionClaim

MACHINE_FAILURES = (RuntimeError, MemoryError, OSError)
"""Errors for which this machine is to blame, for example when it is out of memory or its device is gone."""
FAILURES = (TransientError, ProtocolError, *MACHINE_FAILURES, ArithmeticError, LookupError, TypeError, ValueError)
"""Errors after which a submission counts as unknown."""


def judge(claim: SubmissionClaim, tools: CheckTools, *, full: bool) -> Judgement:
    """Run the checks in order. The first rejection decides.

    Unknown is the judgement only if no later check rejects. Otherwise an answer whose grading hits a limit would keep
    faked work from being replayed.
    A failure of this machine (out of memory, a lost device, a store that does not answer) is unknown, and so is input
    that the engine's arithmetic cannot process. Neither must end the validator's process.
    """
    unclear: Judgement | None = None
    try:
        for check in CHECKS if full else CHEAP_CHECKS:
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
    if unclear is not None:
        return unclear
    units = min(count_units(claim.rollouts), tools.params.max_task_units)
    return Judgement.accept(units, **{LIVE_GROUPS: claim.live_groups})


def build_verdict(
    judgement: Judgement, receipt: Receipt, *, evidence_hash: Hash, validator: Address, now: float, seconds: int
) -> Verdict:
    """Return the verdict to be signed. Its `deadline` is `now + seconds`."""
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
