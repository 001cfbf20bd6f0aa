"""Restores a run on one machine at its start, from the newest checkpoint and the batches that were learned after it."""

from functools import partial
from pathlib import Path

from covey.errors import OperatorError
from covey.model.policy_files import load_tokenizer
from covey.protocol.ids import PoolId, Step
from covey.runtime.log import get_logger
from covey.standalone.beacons import Beacons
from covey.standalone.config import TrainConfig
from trainer.algorithm.learner import Learner
from trainer.checkpoints.checkpoint import Checkpoints, StepFolders, export_policy, is_whole
from trainer.checkpoints.journal import StepJournal
from trainer.checkpoints.resume import repeat_steps
from trainer.schedule import is_kept_again


def restore(
    config: TrainConfig,
    learner: Learner,
    source: str | Path,
    *,
    checkpoints: Checkpoints,
    journal: StepJournal,
    exports: StepFolders,
    beacons: Beacons,
    pool: PoolId,
) -> tuple[Step, dict[str, float]]:
    """Load the newest checkpoint and learn the later steps again. Without a checkpoint, write the one of step 0.

    The tokenizer is that of the model `source`. Returns the step of the newest policy, which is in `exports` then, and
    the report of the step before.

    Raises the errors of `Checkpoints.restore` and `repeat_steps`. Raises OperatorError("wrong_checkpoint") if batches
    of later steps are on disk, but the checkpoint that they follow is lost.
    """
    state, tokenizer = checkpoints.restore(learner), load_tokenizer(source)
    first, report = (Step(0), {}) if state is None else (state.step, state.report)
    steps = [] if state is None else journal.list_steps(first)
    newest = Step(first + len(steps))
    _require_no_gap(newest, journal=journal, exports=exports, beacons=beacons, home=config.home)
    latest = max(exports.list_steps(), default=newest)
    advice = (
        f"remove {config.home / 'journal'} to go on from the checkpoint of step {first} with new batches, or "
        f"{_advise_new_run(exports, latest)}"
    )
    if latest > newest + 1:  # a crash while a checkpoint is written leaves one more
        get_logger().warning("later policies are removed, their steps are trained again", step=newest, until=latest)
    journal.retain(steps.__contains__)  # the others belong to checkpoints that are lost
    exports.retain(lambda kept: kept <= newest)
    beacons.forget_after(newest)
    report = repeat_steps(
        steps,
        learner,
        tokenizer,
        journal=journal,
        exports=exports,
        pool=pool,
        report=report,
        find_published=beacons.find,
        is_kept=partial(
            is_kept_again,
            newest=newest,
            max_staleness=config.sampling.max_staleness,
            steps=config.steps,
            keep_every=config.ckpt.keep_policies_every,
            eval_every=config.eval.every,
        ),
        advice=advice,
    )
    if not is_whole(exports, newest):
        export_policy(exports, learner, tokenizer, newest)
    beacons.get(newest)
    if state is None:
        checkpoints.save(learner, newest, {})
    return newest, report


def _require_no_gap(newest: Step, *, journal: StepJournal, exports: StepFolders, beacons: Beacons, home: Path) -> None:
    """Raise OperatorError("wrong_checkpoint") if the run has policies and batches after a step that is lost."""
    latest = max(exports.list_steps(), default=newest)
    if not journal.has_later(newest) or (latest <= newest and beacons.find(Step(newest + 1)) is None):
        return
    raise OperatorError(
        "wrong_checkpoint",
        f"the run in {home} can be resumed from step {newest} only, but has later policies and batches, which follow a "
        "checkpoint that is lost",
        fix=f"Put a copy of the lost checkpoint there; or {_advise_new_run(exports, latest)}; or, to train the later "
        f"steps again and lose their policies, remove {home / 'journal'}",
    )


def _advise_new_run(exports: StepFolders, latest: Step) -> str:
    return f"start a new run whose model.path is a copy of {exports.get_path(latest)}"
