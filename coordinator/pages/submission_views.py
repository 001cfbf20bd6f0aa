"""Builds what pages and their JSON show of submissions: statements from completion to transaction, and verdicts."""

from collections.abc import Collection, Iterable, Sequence

from coordinator.db.page_queries import MAX_ROWS, SubmissionItem
from coordinator.db.repository import Repository
from coordinator.pages.context import PagesContext
from coordinator.pages.pool_views import name_epoch_state, name_reason
from covey.errors import ProtocolError
from covey.protocol.api.pages import SubmissionItemView, SubmissionListView
from covey.protocol.ids import Address, Hash, is_address
from covey.protocol.prices import compute_reward
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Decision, Reason

FILTERS = ("contributor", "node", "state", "epoch", "policy_version", "reason")
"""Columns by one of which a list of submissions can be filtered."""


def build_submissions(
    ctx: PagesContext,
    rows: Repository,
    *,
    before: int | None = None,
    limit: int = MAX_ROWS,
    validator: str | None = None,
    **filters: str | int | None,
) -> SubmissionListView:
    """Return the newest submissions first, from the key `before` on, with at most one filter.

    The key is a task, or the number of a turn with the filter `validator`. Raises ProtocolError("many_filters") if
    there are several filters.
    """
    chosen = {name: value for name, value in filters.items() if value is not None}
    if len(chosen) + (validator is not None) > 1:
        raise ProtocolError("many_filters", "a list of submissions has at most one filter", status=422)
    found: Sequence[SubmissionItem]
    if validator is not None:
        judged = rows.list_judged_items(validator, before=before, limit=limit)
        found, keys = [item for _, item in judged], [turn for turn, _ in judged]
    else:
        found = rows.list_submission_items(before=before, limit=limit, **chosen)
        keys = [item.task for item in found]
    last = keys[-1] if len(keys) == min(limit, MAX_ROWS) else None
    return SubmissionListView(items=tuple(describe_submissions(ctx, rows, found)), before=last)


def find_submission(ctx: PagesContext, rows: Repository, prefix: str) -> SubmissionItemView:
    """Return the submission whose receipt hash begins so.

    Raises ProtocolError "unknown_submission", or "ambiguous_hash" if there are several.
    """
    found = rows.find_submission_items(prefix)
    if not found:
        raise ProtocolError("unknown_submission", f"no submission's receipt hash begins with {prefix}", status=404)
    if len(found) > 1:
        raise ProtocolError("ambiguous_hash", f"several receipt hashes begin with {prefix}", status=409)
    return next(iter(describe_submissions(ctx, rows, found)))


def describe_submissions(
    ctx: PagesContext, rows: Repository, found: Collection[SubmissionItem]
) -> Iterable[SubmissionItemView]:
    """Describe submissions, with their epochs, cases and transactions."""
    numbers = {item.epoch for item in found if item.epoch is not None}
    epochs = rows.find_epoch_items(numbers)
    transactions = rows.find_transactions(ctx.config.pool, numbers)
    prices = ctx.read_prices(rows)
    cases = rows.find_cases([item.receipt_hash for item in found if item.reason])
    for item in found:
        case = cases.get(item.receipt_hash)
        transaction = None if item.epoch is None else transactions.get(item.epoch)
        epoch = None if item.epoch is None else epochs.get(item.epoch)
        yield SubmissionItemView(
            receipt_hash=Hash(item.receipt_hash),
            task=item.task,
            node=Address(item.node),
            contributor=Address(item.contributor),
            policy_version=item.policy_version,
            state=item.state,
            reason=name_reason(item.reason),
            replayed=item.audited,
            groups=item.groups,
            live_groups=item.live_groups,
            units=item.units,
            lease=item.lease,
            work_key=Hash(item.work_key),
            signed_at=item.signed_at,
            decided_at=item.decided_at,
            step=item.step,
            epoch=item.epoch,
            epoch_state="none" if epoch is None else name_epoch_state(ctx, epoch),
            final_at=None if epoch is None else epoch.final_at,
            pay=compute_reward(item.units, prices.find(item.epoch)) if item.decision is Decision.ACCEPT else 0,
            transaction=None if transaction is None else Hash(transaction),
            case=None if case is None else case.state,
            case_transaction=None if case is None else Hash(case.transaction_hash),
        )


def parse_filters(values: dict[str, str]) -> dict[str, str | int]:
    """Return filters of a page's address with the types of their columns. Unknown names are left out.

    Raises ProtocolError("bad_filter") if a value does not have the form of its column.
    """
    found: dict[str, str | int] = {}
    for name in (*FILTERS, "validator"):
        text = values.get(name, "")
        if not text:
            continue
        try:
            found[name] = _parse(name, text)
        except (ValueError, KeyError) as error:
            raise ProtocolError("bad_filter", f"{text[:66]} is not a value of {name}", status=422) from error
    return found


def _parse(name: str, text: str) -> str | int:
    if name == "state":
        return SubmissionState(text.upper())
    if name == "reason":
        return Reason[text.upper()].value
    if name in ("epoch", "policy_version"):
        if not text.isascii() or not text.isdecimal() or len(text) > 18:
            raise ValueError(text)
        return int(text)
    if not is_address(text):
        raise ValueError(text)
    return text
