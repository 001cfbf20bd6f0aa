"""Metrics of the coordinator's processes for Prometheus: of requests, writes, the chain's node, and work that waits.

What is in the database and on the chain is read by `serve` alone, so that no sum counts it twice.
"""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from coordinator.context import Context
from coordinator.db.models import SubmissionRow, TaskRow
from coordinator.db.repository import Repository
from coordinator.domain import pausing
from covey.chain.amounts import ETHER
from covey.chain.json_rpc import ChainClient
from covey.errors import TransientError
from covey.protocol.learning_signs import LearningSign
from covey.protocol.verdict import Reason
from covey.runtime.prometheus import ReadOnRequest, build_gauge

HOLD_SECONDS = 2.0
"""Minimum time in seconds between two looks at the database."""
BALANCE_SECONDS = 30.0
"""Minimum time in seconds between two looks at the operator's balance."""
NODE_SECONDS = 2.0
"""Maximum time in seconds to wait for the balance, so that a scrape ends in time if the chain's node hangs."""


def list_metrics(ctx: Context) -> list[Collector]:
    """Return the metrics of the process that follows the chain, without those of requests to the API."""
    node = ChainClient(ctx.client.rpc_url, timeout_s=NODE_SECONDS)
    return [
        *ctx.database.writer_meter,
        *ctx.client.metrics,
        ReadOnRequest(lambda: _read_chain(ctx)),
        ReadOnRequest(lambda: _read_database(ctx), hold_s=HOLD_SECONDS),
        ReadOnRequest(lambda: _read_balance(ctx, node), hold_s=BALANCE_SECONDS),
    ]


def _read_chain(ctx: Context) -> Iterator[Metric]:
    chain = ctx.chain
    if chain.poll_age_s is not None:
        yield build_gauge("covey_chain_poll_age_seconds", "Time since the chain's node answered.", chain.poll_age_s)
    if chain.has_head:
        age = ctx.clock() - chain.head_time
        yield build_gauge("covey_chain_head_age_seconds", "Age of the newest block that was seen.", age)


def _read_balance(ctx: Context, node: ChainClient) -> Iterator[Metric]:
    ether = node.get_balance(ctx.signer.address) / 10**ETHER.decimals
    yield build_gauge("covey_operator_balance_ether", "Ether of the operator's account, which pays for gas.", ether)


def _read_database(ctx: Context) -> Iterator[Metric]:
    try:
        with ctx.database.read() as rows:
            metrics = list(_read_work(ctx, rows))
    except TransientError:
        metrics = []
    yield build_gauge("covey_database_answers", "1 while the database answers, else 0.", float(bool(metrics)))
    yield from metrics


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
