"""One step of learning, which runs in a thread: the updates from a batch, and copies of what makes them durable.

On a GPU the policy and the checkpoint are written while the next step runs (`Learner.is_saved_apart`). On a CPU they
are written before the next update.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from covey.environments.length_costs import LengthCosts
from covey.errors import ProtocolError
from covey.model.prompts import PromptFormat
from covey.network.entry import get_spec
from covey.protocol.ids import Step
from covey.runtime.log import get_logger
from trainer.algorithm import batches
from trainer.checkpoints.checkpoint import prepare_export
from trainer.checkpoints.resume import build_lost_reference
from trainer.context import LearningContext
from trainer.data.samples import AcceptedWork, Batch, Sample
from trainer.monitoring.performance import complete_report, compute_flops, measure_model
from trainer.monitoring.report import build_report, split_rewards
from trainer.monitoring.rollout_files import FOLDER, RolloutFiles


def learn(ctx: LearningContext, works: list[AcceptedWork | None], waited: float) -> None:
    """Run all updates of a step. Then begin to write the policy and the checkpoint that make them durable.

    `works` is the batch, with None for each skipped submission. `waited` is the number of seconds until all files had
    arrived.
    """
    config, params, progress = ctx.config, ctx.params, ctx.progress
    started, step = ctx.timer(), progress.step
    works = [work if work is not None and is_computable(ctx, work) else None for work in works]
    kept = [work for work in works if work is not None]
    samples = batches.build_samples(kept, group_size=params.group_size, loss=config.loss)
    taught = batches.keep_live(samples, group_size=params.group_size) if params.online_filter else samples
    split = batches.split_updates(
        fill_logprobs(ctx, taught), group_size=params.group_size, updates=config.optim.updates_per_step
    )
    consumed = [
        batches.build_batch(
            update,
            normaliser=config.loss.normaliser,
            constant=params.model.max_completion_tokens,
            keep_all=config.loss.needs_all_samples,
            mask_truncated=config.loss.mask_truncated_completions,
        )
        for update in split
    ]
    if not ctx.learner.is_saved_apart:
        ctx.saver.wait()  # for the previous step, whose tensors are written without a copy
    updates = ctx.learner.learn(consumed)
    families = [family for batch in consumed for family in ctx.learner.find_families(batch)]
    predictions = sum(len(sample.tokens) for batch in consumed for sample in batch.samples)
    updated = ctx.timer()
    report = build_report(samples, updates, step=step, works=works)
    format = PromptFormat.of(params.model)
    costs = LengthCosts(get_spec(params))
    report |= split_rewards(samples, costs, ctx.tokenizer, format=format)
    RolloutFiles(config.home / FOLDER).write(
        step,
        samples,
        count=config.log.rollouts,
        costs=costs,
        tokenizer=ctx.tokenizer,
        format=format,
    )
    report |= {
        "time/wait_for_batch": waited,
        "time/update": updated - started,
        "perf/flops": compute_flops(families, measure_model(ctx.learner.model), predictions=predictions),
    }
    newest = Step(step + 1)

    def finish(copied: float) -> None:
        ctx.exports.retain(lambda version: is_needed(ctx, version, newest))
        saved = (ctx.timer() if ctx.waits_for_writes else copied) - updated  # what the next step waits for
        complete = complete_report(report, config, saved=saved, devices=ctx.learner.ranks.size)
        ctx.metrics.record("update", step, complete)
        progress.written = newest  # last, because the policy is published from here on

    start_writing(ctx, newest, consumed, report, finish=finish)
    if ctx.waits_for_writes:
        ctx.saver.wait()
    progress.step, progress.waiting_since = newest, ctx.timer()


def start_writing(
    ctx: LearningContext,
    newest: Step,
    batches: Sequence[Batch],
    report: dict[str, float],
    *,
    finish: Callable[[float], None],
) -> None:
    """Copy the policy of step `newest` and what makes it durable, and begin to write them. `finish` is called after
    both, with the time on `LearningContext.timer` when the copies were complete.

    A checkpoint makes it durable, or the `batches` of the step if none is due. Several ranks write the checkpoint
    before the policy, because the other ranks have begun with their shards and wait for rank 0.
    """
    ctx.saver.wait()  # for the previous step, whose copies are overwritten
    write_policy = prepare_export(
        ctx.exports, ctx.learner, ctx.tokenizer, newest, open_preview=partial(ctx.open_preview, newest)
    )
    if ctx.checkpoints.is_due(newest):
        write_state, is_first = ctx.checkpoints.prepare(ctx.learner, newest, report), ctx.learner.ranks.is_shared
    else:
        write_state, is_first = partial(ctx.journal.write, Step(newest - 1), tuple(batches), report), True

    copied = ctx.timer()

    def write() -> None:
        if is_first:
            write_state()
        ctx.note_export(newest, write_policy())

    def write_rest() -> None:
        if not is_first:
            write_state()
        forget_repeatable(ctx)
        finish(copied)

    ctx.saver.start(write, write_rest)


def save_newest(ctx: LearningContext) -> None:
    """Write a checkpoint of the newest step unless it has one. The next start then learns nothing again."""
    step = ctx.progress.step
    if ctx.checkpoints.newest != step:
        ctx.checkpoints.save(ctx.learner, step, {})  # its metrics are recorded already
        forget_repeatable(ctx)


def forget_repeatable(ctx: LearningContext) -> None:
    """Remove the batches of all steps that the newest checkpoint covers."""
    newest = ctx.checkpoints.newest or 0
    ctx.journal.retain(lambda step: step >= newest)


def is_computable(ctx: LearningContext, work: AcceptedWork) -> bool:
    """Return whether a submission has usable log-probabilities, or its policy is here so that they can be recomputed.

    A trainer that continued without a checkpoint has no earlier policies, and a kept policy may be damaged.
    """
    version = work.policy_version
    is_kept = version in ctx.exports.list_steps() and version not in ctx.progress.unreadable
    if work.replayed or ctx.config.loss.old_policy != "behaviour" or is_kept:
        return True
    get_logger().error("submission skipped, its policy is lost", task=work.task, policy=version)
    return False


def fill_logprobs(ctx: LearningContext, samples: list[Sample]) -> list[Sample]:
    """Return samples with the log-probabilities that the objective requires.

    Unless claims are used, log-probabilities of work that was not replayed are recomputed here. The learner computes
    those under the policy at the start of the step.

    Raises ProtocolError if a policy is damaged. The next attempt skips its work. Raises OperatorError("no_reference")
    if the reference policy is damaged.
    """
    config, recomputer = ctx.config, ctx.recomputer
    if config.loss.old_policy == "recompute":
        samples = [replace(sample, old=None) for sample in samples]
    if recomputer is None:
        return samples

    def recompute(version: Step, missing: Sequence[Sample]) -> list[tuple[float, ...]]:
        try:
            return recomputer.compute(ctx.exports.get_path(version), missing)
        except ProtocolError:
            ctx.progress.unreadable.add(version)
            raise

    if config.loss.old_policy == "behaviour":
        samples = batches.fill_old(samples, recompute)
    if config.loss.beta > 0:
        reference = ctx.exports.get_path(Step(0))
        try:
            logprobs = recomputer.compute(reference, samples)
        except ProtocolError as error:
            raise build_lost_reference(f"the policy folder {reference} is damaged ({error.message})") from error
        samples = [replace(sample, reference=each) for sample, each in zip(samples, logprobs, strict=True)]
    return samples


def is_needed(ctx: LearningContext, version: Step, newest: Step) -> bool:
    """Return whether a policy is still needed: to recompute log-probabilities, to be published or compared with the
    chain, as the reference, or to be evaluated.
    """
    is_unseen = version > ctx.progress.considered
    is_recent = newest - version <= ctx.params.max_staleness or ctx.requires(version)
    is_reference = version == 0 and ctx.config.loss.beta > 0
    return is_recent or is_reference or is_unseen or version in ctx.background.waiting
