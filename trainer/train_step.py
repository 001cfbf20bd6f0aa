"""One step of learning, which runs in a thread: the updates from a batch, then the policy and the checkpoint."""

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
    """Run all updates of a step. Then write the policy and the checkpoint that make them durable.

    `works` is the batch, with None for each skipped submission. `waited` is the number of seconds until all files had
    arrived.
    """
    config, params, progress = ctx.config, ctx.network.params, ctx.progress
    started, step = ctx.timer(), progress.step
    works = [work if work is not None and is_computable(ctx, work) else None for work in works]
    kept = [work for work in works if work is not None]
    samples = batches.build_samples(kept, group_size=params.group_size, advantage=config.advantage)
    taught = batches.keep_live(samples, group_size=params.group_size) if params.online_filter else samples
    split = batches.split_updates(
        fill_logprobs(ctx, taught), group_size=params.group_size, updates=config.updates_per_step
    )
    consumed = [
        batches.build_batch(
            update,
            normaliser=config.normaliser,
            constant=params.model.max_completion_tokens,
            keep_all=config.kl_coef > 0 or config.entropy_coef > 0,
            mask_truncated=config.mask_truncated,
        )
        for update in split
    ]
    updates = ctx.learner.learn(consumed)
    families = [family for batch in consumed for family in ctx.learner.find_families(batch)]
    predictions = sum(len(sample.tokens) for batch in consumed for sample in batch.samples)
    updated = ctx.timer()
    report = build_report(samples, updates, step=step, works=works)
    report |= split_rewards(samples, ctx.environment, ctx.tokenizer, format=PromptFormat.of(params.model))
    report |= {
        "time/wait_for_batch": waited,
        "time/update": updated - started,
        "perf/flops": compute_flops(families, measure_model(ctx.learner.model), predictions=predictions),
    }
    newest = Step(step + 1)
    exported = export_policy(ctx.exports, ctx.learner, ctx.tokenizer, newest)
    ctx.publisher.checks.record(exported)
    ctx.checkpoints.save(ctx.learner, newest, report)
    ctx.exports.retain(lambda version: is_needed(ctx, version, newest))
    ended = ctx.timer()
    complete = complete_report(report, config, saved=ended - updated, devices=ctx.learner.ranks.size)
    ctx.metrics.record("update", step, complete)
    progress.fetched, progress.fruitless = {}, 0
    progress.step, progress.waiting_since = newest, ended  # last, because the policy is published from here on


def is_computable(ctx: Context, work: AcceptedWork) -> bool:
    """Return whether a submission has usable log-probabilities, or its policy is here so that they can be recomputed.

    A trainer that continued without a checkpoint has no earlier policies, and a kept policy may be damaged.
    """
    version = work.policy_version
    is_kept = version in ctx.exports.list_steps() and version not in ctx.progress.unreadable
    if work.replayed or ctx.config.old_policy == "recompute" or is_kept:
        return True
    get_logger().error("submission skipped, its policy is lost", task=work.task, policy=version)
    return False


def fill_logprobs(ctx: Context, samples: list[Sample]) -> list[Sample]:
    """Return samples with the log-probabilities that the objective requires.

    Log-probabilities of work that was not replayed are recomputed here. The learner computes those under the policy at
    the start of the step.

    Raises ProtocolError if a policy is damaged. The next attempt skips its work. Raises OperatorError("no_reference")
    if the reference policy is damaged.
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
            logprobs = recomputer.compute(reference, samples)
        except ProtocolError as error:
            raise build_lost_reference(f"the policy folder {reference} is damaged ({error.message})") from error
        samples = [replace(sample, reference=each) for sample, each in zip(samples, logprobs, strict=True)]
    return samples


def is_needed(ctx: Context, version: Step, newest: Step) -> bool:
    """Return whether a policy is still needed: to recompute log-probabilities, to be published or compared with the
    chain, as the reference, or to be evaluated.
    """
    is_recent = newest - version <= ctx.network.params.max_staleness or version >= ctx.progress.unpublished - 1
    is_reference = version == 0 and ctx.config.kl_coef > 0
    return is_recent or is_reference or version in ctx.background.waiting
