"""Checks whether a trainer may resume: its newest checkpoint must match the policies on chain.

Only the chain decides what is published.
"""

from pathlib import Path

from covey.errors import OperatorError
from covey.protocol.ids import Step


def require_resumable(step: Step, published: int, *, max_staleness: int) -> None:
    """Raise OperatorError("wrong_checkpoint") unless masters of `step` fit a chain that holds `published` policies.

    The policy of `step` may be the newest on chain. It may also be unpublished with at most `max_staleness` unpublished
    ones before it, because a batch requires work of a policy that was on chain. In any other case the newest checkpoint
    is lost or belongs to another trainer.
    """
    if max(step - max_staleness, min(step, 1)) <= published <= step + 1:
        return
    where, instead = "ahead of", "start a new pool"
    if published > step:
        where, instead = "behind", _advise_fresh_optimizer(published - 1)
    raise OperatorError(
        "wrong_checkpoint",
        f"the state of step {step} is {where} the chain, which holds {published} policies",
        fix=f"Resume with the home folder with which this pool was trained, or {instead}",
    )


def _advise_fresh_optimizer(newest: int) -> str:
    return (
        f"continue from policy {newest} with a fresh optimizer: copy home/exports/{newest}, remove home/checkpoints, "
        f"set initial_policy to the copy and initial_step to {newest}"
    )


def build_lost_policy(folder: Path, published: int) -> OperatorError:
    """Build the error for a lost policy that is older than the masters and must be published before theirs."""
    lost = int(folder.name)
    return OperatorError(
        "lost_policy",
        f"{folder} is damaged or gone, and the chain does not hold it yet",
        fix=f"Put a copy of it there; or, if home/checkpoints/{lost} is kept, remove the later checkpoints, and the "
        f"policy is exported again; or {_advise_fresh_optimizer(published - 1)}",
    )


def build_lost_reference(reason: str) -> OperatorError:
    """Build the error for a lost policy of step 0, which `kl_coef` requires as the reference."""
    return OperatorError(
        "no_reference",
        f"{reason}, and kl_coef requires it as the reference",
        fix="Put a copy of it there from the lost home folder, or set kl_coef to 0",
    )
