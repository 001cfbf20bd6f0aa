"""Gives validators their orders, and records commitments and verdicts, with many requests in one transaction."""

from collections.abc import Sequence

from coordinator.api.file_links import sign_download
from coordinator.api.process.request_batches import RequestBatches
from coordinator.context import Context
from coordinator.db.models import StepRow
from coordinator.db.repository import Repository
from coordinator.domain import turns
from coordinator.domain.submissions import to_receipt
from coordinator.domain.turns import Commitment, Order, Reveal, TurnQuery
from covey.errors import CoveyError
from covey.protocol.api.common import ReceiptBody
from covey.protocol.api.validator import JudgeOrder, RevealOrder
from covey.protocol.ids import Hash


class TurnIntake:
    """Handles the turns of validators in one API process. Example: `orders = await turn_intake.take(query)`."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._queries = RequestBatches[TurnQuery, Sequence[JudgeOrder | RevealOrder]](
            lambda items: ctx.database.run(lambda rows: [self._take(rows, each) for each in items], name="take_orders")
        )
        self._commits = RequestBatches[Commitment, None](
            lambda items: ctx.database.run(
                lambda rows: turns.record_commits(rows, ctx.params, items, now=ctx.clock()), name="record_commits"
            )
        )
        self._checks = RequestBatches[Reveal, None](
            lambda items: ctx.database.query(lambda rows: self._check(rows, items))
        )
        self._reveals = RequestBatches[Reveal, None](
            lambda items: ctx.database.run(
                lambda rows: turns.record_reveals(rows, ctx.params, items, now=ctx.clock()), name="record_reveals"
            )
        )

    async def take(self, query: TurnQuery) -> Sequence[JudgeOrder | RevealOrder]:
        """Give a validator its turns, and return its orders after the commit."""
        return await self._queries.add(query)

    async def commit(self, commitment: Commitment) -> None:
        """Record a commitment. Raises the errors of `turns.record_commits`."""
        await self._commits.add(commitment)

    async def check(self, reveal: Reveal) -> None:
        """Raise the errors of `turns.check_reveals`. Called before the evidence of a verdict is stored."""
        await self._checks.add(reveal)

    async def reveal(self, reveal: Reveal) -> None:
        """Record a verdict. Raises the errors of `turns.check_reveals`."""
        await self._reveals.add(reveal)

    def _take(self, repository: Repository, query: TurnQuery) -> list[JudgeOrder | RevealOrder]:
        orders = turns.take_orders(repository, self._ctx.params, query, now=self._ctx.clock())
        built = (_build_order(self._ctx, order, repository.get_step(order.row.policy_version)) for order in orders)
        return [order for order in built if order is not None]

    def _check(self, repository: Repository, items: Sequence[Reveal]) -> list[CoveyError | None]:
        checked = turns.check_reveals(repository, self._ctx.params, items, now=self._ctx.clock())
        return [found if isinstance(found, CoveyError) else None for found in checked]


def _build_order(ctx: Context, order: Order, step: StepRow | None) -> JudgeOrder | RevealOrder | None:
    """Return the body of an order. None while a reorganization has removed the submission's policy or draw."""
    if order.kind == "reveal":
        return RevealOrder(judgement=order.turn.id)
    if step is None or order.row.draw is None:
        return None
    return JudgeOrder(
        judgement=order.turn.id,
        receipt=ReceiptBody.of(to_receipt(order.row, ctx.config.pool)),
        signature=order.row.signature,
        url=sign_download(ctx, order.row),
        record_hash=Hash(step.record_hash),
        contract=order.row.contract,
        draw=Hash(order.row.draw),
        full=order.turn.full,
        seconds_left=max(0.0, order.turn.deadline - ctx.clock()),
    )
