"""Builds what pages and their JSON show of slashing cases: who voted for what, the window of the veto, the outcome."""

from coordinator.db.page_queries import MAX_ROWS, CaseItem
from coordinator.db.repository import Repository
from coordinator.pages.context import PagesContext
from coordinator.pages.pool_views import name_reason
from covey.errors import ProtocolError
from covey.protocol.api.pages import CaseDetail, CaseItemView, CaseListView, CaseVoteView
from covey.protocol.ids import Address, Hash, is_hash
from covey.protocol.status import CaseState, SubmissionState
from covey.protocol.verdict import Decision


def build_cases(rows: Repository, *, before: str = "", limit: int = MAX_ROWS) -> CaseListView:
    """Return the newest cases first, from the one after the key `before` on, which is "BLOCK-RECEIPT"."""
    block, _, receipt_hash = before.partition("-")
    found = rows.list_case_items(before=(int(block), receipt_hash) if before else None, limit=limit)
    is_full = len(found) == min(limit, MAX_ROWS)
    last = f"{found[-1].block_number}-{found[-1].receipt_hash}" if is_full else None
    return CaseListView(items=tuple(map(describe_case, found)), before=last)


def describe_case(item: CaseItem) -> CaseItemView:
    """Describe a case."""
    return CaseItemView(
        receipt_hash=Hash(item.receipt_hash),
        node=Address(item.node),
        contributor=Address(item.contributor),
        state=item.state,
        block=item.block_number,
        transaction=Hash(item.transaction_hash),
    )


def build_case(ctx: PagesContext, rows: Repository, receipt_hash: str) -> CaseDetail:
    """Return a case with its votes. Raises ProtocolError("unknown_case") if the chain has reported no such case."""
    item = rows.find_cases([receipt_hash]).get(receipt_hash) if is_hash(receipt_hash) else None
    if item is None:
        raise ProtocolError("unknown_case", f"the chain has reported no case about {receipt_hash[:66]}", status=404)
    submission = next(iter(rows.find_submission_items(receipt_hash)), None)
    is_decided = submission is not None and submission.state is not SubmissionState.SUBMITTED
    return CaseDetail(
        **describe_case(item).model_dump(),
        reason=name_reason(item.reason) if item.reason else "unknown",
        amount=None if item.amount is None else int(item.amount),
        veto_until=item.veto_until,
        opened_transaction=None if item.opened_transaction is None else Hash(item.opened_transaction),
        decided_at=None if submission is None else submission.decided_at,
        sentence=_describe_outcome(ctx, item),
        votes=_list_votes(rows, receipt_hash) if is_decided else (),
    )


def _list_votes(rows: Repository, receipt_hash: str) -> tuple[CaseVoteView, ...]:
    decisions = {each.value: each.name.lower() for each in Decision}
    return tuple(
        CaseVoteView(
            validator=Address(turn.validator),
            outcome=decisions.get(turn.verdict.outcome, "unknown"),
            reason=name_reason(turn.verdict.reason),
            replayed=turn.full,
            opened_at=turn.opened_at,
        )
        for turn in rows.list_turn_items(receipt_hash)
        if turn.validator is not None and turn.verdict is not None and turn.signature is not None
    )


def _describe_outcome(ctx: PagesContext, item: CaseItem) -> str:
    """Return in one sentence what became of a case, or what can still become of it."""
    if item.state is not CaseState.LOCKED:
        return {
            CaseState.VETOED: "The arbiter has vetoed the case, and the stake is free again.",
            CaseState.SLASHED: "The case was executed, and the stake is slashed.",
            CaseState.LAPSED: "Nobody executed the case in time, and the stake is free again.",
        }[item.state]
    if item.veto_until is None:
        return "The stake is locked until the case is vetoed or executed."
    chain_time = ctx.clock() if ctx.chain.head is None else ctx.chain.head.timestamp
    if chain_time <= item.veto_until:
        return f"The arbiter can veto the case for {item.veto_until - chain_time:.0f} s more."
    return "The window of the veto has passed, and anyone can execute the case."
