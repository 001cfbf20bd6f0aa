"""Restores a trainer at its start. Its newest checkpoint must match the policies on chain.

Steps after the checkpoint are learned again from the journal, and must give the policies that were published. The chain
alone decides which policies are published.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import ne
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from covey.chain.contracts import PolicyRegistry
from covey.errors import OperatorError, ProtocolError
from covey.network.entry import Network
from covey.protocol.ids import ZERO_HASH, Hash, PoolId, Step
from covey.runtime.log import get_logger
from covey.shardcast.export_preview import PreviewWriter
from covey.shardcast.policy_export import build_record
from trainer.algorithm.learner import Learner
from trainer.checkpoints.checkpoint import Checkpoints, StepFolders, export_policy, is_whole
from trainer.checkpoints.journal import StepJournal
from trainer.config import TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedState:
    """The state from which a trainer resumes."""

    step: Step
    """Step of the policy that the master weights represent."""
    unpublished: Step
    """Step of the oldest policy that this process has not seen on chain; see `TrainingProgress.unpublished`."""
    report: dict[str, float] = field(default_factory=dict)
    """Report of the previous step, which the metrics may lack after a crash. Empty if there was none."""


def restore(
    config: TrainerConfig,
    network: Network,
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    *,
    checkpoints: Checkpoints,
    journal: StepJournal,
    exports: StepFolders,
    source: Path,
    keeps: Callable[[Step, Step], bool],
    open_preview: Callable[[Step, Path], PreviewWriter | None] = lambda *_: None,
) -> ResumedState:
    """Load the newest checkpoint into the learner, learn the later steps again, and export the newest policy again if
    its export is damaged.

    Without a checkpoint, write one for `initial_step`, whose policy is in the folder `source`. `keeps` returns whether
    learning from the second step on needs the policy of the first. `open_preview` may serve the newest policy while it
    is exported. Raises the errors of `require_resumable` and
    `repeat_steps`. Raises OperatorError("another_policy"), ("lost_policy") or ("no_reference")
    if a policy that is needed is missing or different.
    """
    registry = network.contracts.policies
    state = checkpoints.restore(learner)
    first = Step(config.initial_step) if state is None else state.step
    steps = [] if state is None else journal.list_steps(first)
    step = Step(first + len(steps))
    published = registry.steps_of(network.pool)
    require_resumable(step, published, max_staleness=network.params.max_staleness)
    if state is None and step > 0:
        _require_published(registry, network.pool, step, source)
    journal.retain(steps.__contains__)  # the others belong to checkpoints that are lost
    exports.retain(lambda kept: kept <= step)

    def find_published(version: Step) -> Hash | None:
        return registry.policy_of(network.pool, version) if version < published else None

    def is_kept(version: Step) -> bool:
        is_base = version >= published - 1  # compared with the chain again, or published next
        return is_base or keeps(version, step)

    report = {} if state is None else state.report
    report = repeat_steps(
        steps, learner, tokenizer, journal=journal, exports=exports, pool=network.pool, report=report,
        find_published=find_published, is_kept=is_kept, advice=_advise_fresh_optimizer(published - 1),
    )  # fmt: skip
    if config.loss.beta > 0 and step > 0 and not is_whole(exports, Step(0)):
        raise build_lost_reference(f"{exports.get_path(Step(0))} is damaged or missing")
    for lost in (Step(n) for n in range(published, step) if not is_whole(exports, Step(n))):
        raise build_lost_policy(exports.get_path(lost), published)
    if not is_whole(exports, step):
        export_policy(exports, learner, tokenizer, step, open_preview=partial(open_preview, step))
    newest = Step(max(0, published - 1))
    is_newest_kept = newest == step or is_whole(exports, newest)
    if state is None:
        checkpoints.save(learner, step, {})
    unpublished = newest if is_newest_kept else Step(published)
    return ResumedState(step=step, unpublished=unpublished, report=report)


def repeat_steps(
    steps: Sequence[Step],
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    *,
    journal: StepJournal,
    exports: StepFolders,
    pool: PoolId,
    report: dict[str, float],
    find_published: Callable[[Step], Hash | None],
    is_kept: Callable[[Step], bool],
    advice: str,
) -> dict[str, float]:
    """Learn the steps after the newest checkpoint again from the journal, and export their policies again.

    Returns the report of the last one, or `report` if there are none. `find_published` returns the record hash of a
    policy, or None if nobody has seen it. A published policy for which `is_kept` returns False is removed once it is
    compared, so that they do not fill the disk. `advice` says how to continue from the newest
    published policy.

    Raises OperatorError("policy_not_repeated") if a policy differs from the published one, whose folder then stays.
    Raises OperatorError("damaged_journal").
    """
    for step in steps:
        get_logger().info("step is learned again", step=step)
        learned, newest = journal.read(step), Step(step + 1)
        learner.learn(learned.batches)
        parent, published = find_published(step) or ZERO_HASH, find_published(newest)
        require = partial(_require_repeated, pool=pool, step=newest, parent=parent, published=published, advice=advice)
        export_policy(exports, learner, tokenizer, newest, require=None if published is None else require)
        if published is not None and not is_kept(newest):
            exports.retain(partial(ne, newest))
        report = learned.report
    return report


def _require_repeated(
    folder: Path, *, pool: PoolId, step: Step, parent: Hash, published: Hash | None, advice: str
) -> None:
    """Raise OperatorError("policy_not_repeated") unless `folder` contains the published policy of `step`."""
    found = build_record(folder, pool=pool, step=step, parent=parent).compute_hash()
    if found != published:
        raise OperatorError(
            "policy_not_repeated",
            f"step {step - 1} was learned again after a crash and gives policy {step} with the hash {found}, but the "
            f"published policy {step} has the hash {published}",
            fix="Start with the settings, packages, device and number of processes that trained it; or, if they do not "
            f"compute the same bits again, {advice}",
        )


def require_resumable(step: Step, published: int, *, max_staleness: int) -> None:
    """Raise OperatorError("wrong_checkpoint") unless master weights of `step` match a chain with `published` policies.

    The policy of `step` can be the newest on chain. It can also be unpublished, with at most `max_staleness`
    unpublished policies before it, because a batch requires work of a policy that was on chain. In any other case the
    newest checkpoint is lost or belongs to a different trainer.
    """
    if max(step - max_staleness, min(step, 1)) <= published <= step + 1:
        return
    where, instead = "ahead of", "start a new pool"
    if published > step:
        where, instead = "behind", _advise_fresh_optimizer(published - 1)
    raise OperatorError(
        "wrong_checkpoint",
        f"the checkpoint of step {step} is {where} the chain, which has {published} policies",
        fix=f"Resume with the home folder that was used to train this pool, or {instead}",
    )


def _require_published(registry: PolicyRegistry, pool: PoolId, step: Step, folder: Path) -> None:
    """Raise OperatorError("another_policy") unless `folder` contains the policy that is on chain for `step`."""
    if folder.is_dir() and registry.steps_of(pool) > step:
        parent = registry.policy_of(pool, Step(step - 1)) if step else ZERO_HASH
        try:
            found = build_record(folder, pool=pool, step=step, parent=parent).compute_hash()
        except ProtocolError:
            found = ZERO_HASH
        if found == registry.policy_of(pool, step):
            return
    raise OperatorError(
        "another_policy",
        f"{folder} is not the policy that is on chain for step {step}",
        fix="Set initial_step to the newest published step N, and model.path to a copy of home/exports/N",
    )


def _advise_fresh_optimizer(newest: int) -> str:
    return (
        f"continue from policy {newest} with a fresh optimizer: copy home/exports/{newest}, remove home/checkpoints, "
        f"set model.path to the copy and initial_step to {newest}"
    )


def build_lost_policy(folder: Path, published: int) -> OperatorError:
    """Build the error for a lost policy that is older than the master weights and must be published before theirs."""
    lost = int(folder.name)
    return OperatorError(
        "lost_policy",
        f"{folder} is damaged or missing, and its policy is not on chain yet",
        fix=f"Put a copy of the folder there; or, if home/checkpoints/{lost} exists, remove the later "
        "checkpoints so that the policy is exported again; or "
        f"{_advise_fresh_optimizer(published - 1)}",
    )


def build_lost_reference(reason: str) -> OperatorError:
    """Build the error for a lost policy of step 0, which `loss.beta` requires as the reference."""
    return OperatorError(
        "no_reference",
        f"{reason}, but loss.beta requires the policy of step 0 as the reference",
        fix="Restore the folder from a copy of the old home folder, or set loss.beta to 0",
    )
