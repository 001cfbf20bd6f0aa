"""Checks uploads and receipts against the database, and records receipts, in batches of many requests."""

from collections.abc import Sequence
from typing import NamedTuple

from coordinator.api.process.request_batches import RequestBatches
from coordinator.context import Context
from coordinator.db.models import TaskRow
from coordinator.db.repository import Repository
from coordinator.domain import stakes, submissions, tasks
from coordinator.domain.submissions import Countersigned, VerifiedReceipt
from covey.chain.deterrence import compute_undrawn_limit
from covey.errors import CoveyError
from covey.protocol.ids import Address, LeaseId, TaskId
from covey.protocol.messages import Receipt
from covey.protocol.prices import find_highest_price


class NewReceipt(NamedTuple):
    """Value needed to accept a receipt that is not recorded yet."""

    undrawn_limit: int
    """Reward, in the token's smallest unit, up to which the contributor's work needs no certain replay."""


class _Lease(NamedTuple):
    node: Address
    task: TaskId
    lease: LeaseId


class Intake:
    """Checks and records the submissions of one API process. Example: `promise = await intake.record(handed_in)`."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._leases = RequestBatches[_Lease, bool](
            lambda items: ctx.database.query(lambda rows: self._check_leases(rows, items))
        )
        self._checks = RequestBatches[Receipt, Countersigned | NewReceipt](
            lambda items: ctx.database.query(lambda rows: self._check_receipts(rows, items))
        )
        self._records = RequestBatches[VerifiedReceipt, Countersigned](
            lambda items: ctx.database.run(lambda rows: self._record(rows, items), name="record_receipts")
        )

    async def is_recorded(self, node: Address, task: TaskId, lease: LeaseId) -> bool:
        """Return whether the receipt of a lease is recorded. Raises the errors of `tasks.require_lease` if not."""
        return await self._leases.add(_Lease(node, task, lease))

    async def check(self, receipt: Receipt) -> Countersigned | NewReceipt:
        """Return the promise for a recorded receipt, or the value needed to accept a new one.

        A receipt is checked before its file is stored, so that refused files do not fill the store. Raises the errors
        of `submissions.check_receipts` and `stakes.require_stake`.
        """
        return await self._checks.add(receipt)

    async def record(self, handed_in: VerifiedReceipt) -> Countersigned:
        """Record a receipt, and return its promise. Raises the errors of `submissions.check_receipts`."""
        return await self._records.add(handed_in)

    def _check_leases(self, repository: Repository, items: Sequence[_Lease]) -> list[bool | CoveyError]:
        ids = {int(each.task) for each in items}
        repository.load_tasks(ids)
        recorded = {(row.task, row.lease): row.node for row in repository.list_submissions_of(ids)}
        results: list[bool | CoveyError] = []
        now = self._ctx.clock()
        for each in items:
            if recorded.get((each.task, each.lease)) == each.node:
                results.append(True)
                continue
            try:
                tasks.require_lease(repository, node=each.node, task=each.task, lease=each.lease, now=now)
                results.append(False)
            except CoveyError as error:
                results.append(error)
        return results

    def _check_receipts(
        self, repository: Repository, receipts: Sequence[Receipt]
    ) -> list[Countersigned | NewReceipt | CoveyError]:
        ctx = self._ctx
        contributors = {receipt.contributor for receipt in receipts}
        repository.kept.update(repository.list_contributors(contributors))
        counts = repository.count_nodes_of(contributors)
        results: list[Countersigned | NewReceipt | CoveyError] = []
        checked = submissions.check_receipts(repository, ctx.params, receipts, now=ctx.clock())
        for receipt, found in zip(receipts, checked, strict=True):
            if not isinstance(found, TaskRow):
                results.append(found)
                continue
            try:
                who = receipt.contributor
                stake = stakes.get_stake(repository.get_contributor(who))
                stakes.require_stake(stake, rule=ctx.stake_rule, contributor=who, nodes=counts.get(who, 1))
                results.append(NewReceipt(compute_undrawn_limit(ctx.terms, stake.free)))
            except CoveyError as error:
                results.append(error)
        return results

    def _record(self, repository: Repository, items: Sequence[VerifiedReceipt]) -> list[Countersigned | CoveyError]:
        ctx = self._ctx
        return submissions.record_receipts(
            repository, ctx.params, items, price=find_highest_price(ctx.chain.prices), now=ctx.clock()
        )
