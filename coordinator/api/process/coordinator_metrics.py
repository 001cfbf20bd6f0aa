"""Metrics of the coordinator for Prometheus: what this process does, and how much work waits in the database."""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from coordinator.context import Context
from coordinator.db.models import SubmissionRow, TaskRow
from coordinator.db.repository import Repository
from coordinator.domain import pausing
from covey.protocol.learning_signs import LearningSign
from covey.protocol.verdict import Reason
from covey.runtime.prometheus import ReadOnRequest, build_counter, build_gauge, build_registry, render


class Meters:
    """Counts of one API process."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        """Number of answers by the class of their status, such as "2xx"."""
        self.refusals: Counter[str] = Counter()
        """Number of requests that were refused before their route, by code of the error."""

    def count_answer(self, status: int) -> None:
        """Count an answer."""
        self.answers[f"{status // 100}xx"] += 1


def build_process_registry(ctx: Context, meters: Meters, *, count_polls: Callable[[], int]) -> CollectorRegistry:
    """Return the registry of an API process. `count_polls` returns the number of open long polls of nodes."""
    registry = build_registry()
    registry.register(ReadOnRequest(lambda: _read_process(ctx, meters, count_polls())))
    return registry


def _read_process(ctx: Context, meters: Meters, polls: int) -> Iterator[Metric]:
    writer, chain = ctx.database.writer_meter, ctx.chain
    yield build_counter("covey_answers", "Answers by class of status.", dict(meters.answers), label="status")
    refused = "Requests that were refused before their body was read."
    yield build_counter("covey_refusals", refused, dict(meters.refusals), label="code")
    yield build_counter("covey_commits", "Write transactions of this process.", writer.commits)
    yield build_counter("covey_commands", "Commands in those transactions.", writer.commands)
    yield build_counter("covey_commit_seconds", "Time that those transactions took, with the wait.", writer.seconds)
    yield build_gauge("covey_polls", "Nodes that wait for a task.", polls)
    if chain.poll_age_s is not None:
        yield build_gauge("covey_chain_poll_age_seconds", "Time since the chain's node answered.", chain.poll_age_s)
    if chain.has_head:
        age = ctx.clock() - chain.head_time
        yield build_gauge("covey_chain_head_age_seconds", "Age of the newest block that was seen.", age)


def render_work(ctx: Context, rows: Repository) -> bytes:
    """Return how much work waits, and what became of the rest, in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(ReadOnRequest(lambda: _read_work(ctx, rows)))
    return render(registry)


def _read_work(ctx: Context, rows: Repository) -> Iterator[Metric]:
    ages = rows.find_oldest()
    now = ctx.clock()
    yield build_gauge("covey_tasks", "Tasks by state.", rows.count_by_state(TaskRow), label="state")
    submissions = rows.count_by_state(SubmissionRow)
    yield build_gauge("covey_submissions", "Submissions by state.", submissions, label="state")
    reasons = {Reason(reason).name.lower(): count for reason, count in rows.count_by_reason().items()}
    yield build_gauge("covey_refused_submissions", "Submissions without pay, by reason.", reasons, label="reason")
    waits = {name: max(0.0, now - since) for name, since in ages.items() if since is not None}
    text = "Time for which the oldest task, submission or turn has been in its state."
    yield build_gauge("covey_oldest_seconds", text, waits, label="what")
    yield build_gauge("covey_unsettled_submissions", "Decided, and in no epoch.", rows.sum_unsettled().submissions)
    yield build_gauge("covey_unposted_epochs", "Epochs that the chain does not have.", len(rows.list_unposted()))
    yield build_gauge("covey_pending_transactions", "Transactions that are not mined.", rows.count_pending_intents())
    latest = rows.get_latest_step()
    step = -1 if latest is None else latest.number
    yield build_gauge("covey_step", "Newest policy on chain. -1 before the first.", step)
    signs = pausing.list_signs(rows)
    alarms = {sign.value: float(sign in signs) for sign in LearningSign}
    yield build_gauge(
        "covey_alarm", "1 while the trainer reports this sign that it cannot learn.", alarms, label="sign"
    )
    yield build_gauge("covey_paused", "1 while no new tasks are assigned.", float(pausing.is_paused(rows)))
