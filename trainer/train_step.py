"""One step of learning: what the files of a batch teach, and what makes it last.  Called by `loop`, in a thread."""

from collections.abc import Sequence
from dataclasses import replace

from covey.errors import ProtocolError
from covey.model.prompts import PromptFormat
from covey.protocol.ids import Step
from covey.runtime.log import get_logger
from trainer.algorithm import batches
from trainer.checkpoints.checkpoint import export_policy
from trainer.checkpoints.resume import build_lost_reference
from trainer.context import Context
from trainer.data.samples import AcceptedWork, Sample
from trainer.monitoring.performance import complete_report, compute_flops, measure_model
from trainer.monitoring.report import build_report, split_rewards


def learn(ctx: Context, works: list[AcceptedWork | None], waited: float) -> None:
    """All updates of a step, then the policy and the checkpoint that make them last; `waited` seconds for the files."""
    config, params, progress = ctx.config, ctx.network.params, ctx.progress
    started, step = ctx.timer(), progress.step
    kept = [work for work in works if work is not None and is_computable(ctx, work)]
    samples = batches.build_samples(kept, group_size=params.group_size, advantage=config.advantage)
    taught = batches.keep_live(samples, group_size=params.group_size) if params.online_filter else samples
    parts = batches.split_updates(
        fill_logprobs(ctx, taught), group_size=params.group_size, updates=config.updates_per_step
    )
    consumed = [
        batches.build_batch(
            part,
            normaliser=config.normaliser,
            constant=params.model.max_completion_tokens,
            keep_all=config.kl_coef > 0 or config.entropy_coef > 0,
            mask_truncated=config.mask_truncated,
        )
        for part in parts
    ]
    updates = ctx.learner.learn(consumed)
    families = [family for each in consumed for family in ctx.learner.find_families(each)]
    predictions = sum(len(sample.tokens) for each in consumed for sample in each.samples)
    updated = ctx.timer()
    left_out, regraded = len(works) - len(kept), sum(work.regraded for work in kept)
    report = build_report(samples, updates, step=step, left_out=left_out, regraded=regraded)
    report |= split_rewards(samples, ctx.environment, ctx.tokenizer, format=PromptFormat.of(params.model))
    report |= {
        "time/wait_for_batch": waited,
        "time/update": updated - started,
        "perf/flops": compute_flops(families, measure_model(ctx.learner.model), predictions=predictions),
    }
    made = Step(step + 1)
    export_policy(ctx.exports, ctx.learner, ctx.tokenizer, made)
    ctx.checkpoints.save(ctx.learner, made, report)
    ctx.exports.retain(lambda version: is_needed(ctx, version, made))
    ended = ctx.timer()
    complete = complete_report(report, config, saved=ended - updated, devices=ctx.learner.ranks.size)
    ctx.metrics.record("update", step, complete)
    progress.fetched, progress.fruitless = {}, 0
    progress.step, progress.waiting_since = made, ended  # at last: from here on the policy is published


def is_computable(ctx: Context, work: AcceptedWork) -> bool:
    """Whether its log-probabilities are there, or the policy to recompute them with: a trainer that went on without a
    checkpoint has no earlier ones, and a kept one may be damaged."""
    version = work.policy_version
    is_kept = version in ctx.exports.list_steps() and version not in ctx.progress.unreadable
    if work.replayed or ctx.config.old_policy == "recompute" or is_kept:
        return True
    get_logger().error("submission left out, its policy is lost", task=work.task, policy=version)
    return False


def fill_logprobs(ctx: Context, samples: list[Sample]) -> list[Sample]:
    """The log-probabilities that the objective asks for; those that nobody replayed are recomputed here, and the
    learner has those of the policy that the step starts from.

    Raises ProtocolError for a damaged policy, whose work the next try leaves out, and OperatorError("no_reference").
    """
    config, recomputer = ctx.config, ctx.recomputer
    if config.old_policy == "recompute":
        samples = [replace(sample, old=None) for sample in samples]
    if recomputer is None:
        return samples

    def recompute(version: Step, missing: Sequence[Sample]) -> list[tuple[float, ...]]:
        try:
            return recomputer.compute(ctx.exports.get_path(version), missing)
        except ProtocolError:
            ctx.progress.unreadable.add(version)
            raise

    if config.old_policy == "behaviour":
        samples = batches.fill_old(samples, recompute)
    if config.kl_coef > 0:
        reference = ctx.exports.get_path(Step(0))
        try:
            found = recomputer.compute(reference, samples)
        except ProtocolError as error:
            raise build_lost_reference(f"{reference} is damaged ({error.message})") from error
        samples = [replace(sample, reference=each) for sample, each in zip(samples, found, strict=True)]
    return samples


def is_needed(ctx: Context, version: Step, newest: Step) -> bool:
    """Whether a policy may still be recomputed with, published or compared with the chain, referred to or evaluated."""
    is_recent = newest - version <= ctx.network.params.max_staleness or version >= ctx.progress.unpublished - 1
    is_reference = version == 0 and ctx.config.kl_coef > 0
    return is_recent or is_reference or version in ctx.background.waiting
