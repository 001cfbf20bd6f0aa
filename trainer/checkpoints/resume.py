"""Whether a trainer may resume: its newest checkpoint must belong to what the chain holds.

The chain is the truth about what is published.
"""

from pathlib import Path

from covey.errors import OperatorError
from covey.protocol.ids import Step


def require_resumable(step: Step, published: int, *, max_staleness: int) -> None:
    """The masters stand for the policy of `step`, the chain holds `published` policies: this one is the newest there,
    or to come with at most `max_staleness` before it, for a batch wants work of a policy that was on chain; anything
    else is a lost checkpoint or another trainer's.  Raises OperatorError."""
    if max(step - max_staleness, min(step, 1)) <= published <= step + 1:
        return
    where, instead = "ahead of", "start a new pool"
    if published > step:
        where, instead = "behind", _advise_fresh_optimizer(published - 1)
    raise OperatorError(
        "wrong_checkpoint",
        f"the state of step {step} is {where} the chain, which holds {published} policies",
        fix=f"Resume with the home folder that this pool was trained with, or {instead}",
    )


def _advise_fresh_optimizer(newest: int) -> str:
    return (
        f"go on from policy {newest} with a fresh optimizer: copy home/exports/{newest}, remove home/checkpoints, "
        f"set initial_policy to the copy and initial_step to {newest}"
    )


def build_lost_policy(folder: Path, published: int) -> OperatorError:
    """Of one that is older than the masters and has to be published before theirs."""
    lost = int(folder.name)
    return OperatorError(
        "lost_policy",
        f"{folder} is damaged or gone, and the chain does not hold it yet",
        fix=f"Put a copy of it there; or, where home/checkpoints/{lost} is kept, remove those after it, and it is made "
        f"again; or {_advise_fresh_optimizer(published - 1)}",
    )


def build_lost_reference(reason: str) -> OperatorError:
    """Of the policy of step 0, where `kl_coef` wants it."""
    return OperatorError(
        "no_reference",
        f"{reason}, to which kl_coef refers",
        fix="Put a copy of it there, from the home that is lost, or set kl_coef to 0",
    )
