"""Builds what pages show of verdicts: votes, and the numbers of each one's evidence against the pool's limits."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from coordinator.db.page_queries import TurnItem
from coordinator.pages.context import PagesContext
from coordinator.pages.pool_views import name_reason
from covey.errors import ProtocolError
from covey.protocol.api.common import MAX_EVIDENCE_BYTES
from covey.protocol.evidence import Bundle
from covey.protocol.object_keys import build_evidence_key
from covey.protocol.thresholds import Thresholds
from covey.protocol.verdict import Decision

MAX_BUNDLES = 2048
LIMITS = {
    "exponent": "exponent_max",
    "mantissa_rest": "mantissa_mean_max",
    "margin": "margin_max",
    "deviation": "logprob_max",
}
"""Names of limits in the pool's thresholds, by the name of the number in the evidence."""


class ShownNumber(NamedTuple):
    """A number of the evidence. Example: ShownNumber("exponent", "40", "3")."""

    name: str
    value: str
    limit: str
    """Limit of the pool's parameters. Empty: there is none."""


class ShownVote(NamedTuple):
    """A validator's turn at a submission."""

    validator: str
    full: bool
    """Whether it is a replay of all rows, or of the drawn ones with the cheap checks."""
    stage: str
    """"open", "taken", "committed", "lapsed" or "revealed"."""
    outcome: str
    reason: str
    units: int
    evidence_hash: str
    """Empty until the submission is decided."""
    numbers: tuple[ShownNumber, ...]
    hardware: str
    """Hardware and engine by the evidence. Empty: the evidence is not there."""


class EvidenceReader:
    """Reads bundles of the store, which never change. Example: `await reader.load([evidence_hash])`."""

    def __init__(self, ctx: PagesContext) -> None:
        self._ctx = ctx
        self._known: OrderedDict[str, Bundle | None] = OrderedDict()

    async def load(self, evidence_hashes: Iterable[str]) -> Mapping[str, Bundle]:
        """Return those of some bundles that exist, by hash. Raises TransientError if the store does not answer."""
        wanted = list(dict.fromkeys(evidence_hashes))
        for evidence_hash in wanted:
            if evidence_hash not in self._known:
                self._known[evidence_hash] = await self._ctx.executor.run(lambda name=evidence_hash: self._read(name))  # type: ignore[misc]
            self._known.move_to_end(evidence_hash)
        found = {name: bundle for name in wanted if (bundle := self._known[name]) is not None}
        while len(self._known) > MAX_BUNDLES:
            self._known.popitem(last=False)
        return found

    def _read(self, evidence_hash: str) -> Bundle | None:
        """Return a bundle. None if it is not there or not valid."""
        key = build_evidence_key(self._ctx.config.pool, evidence_hash)
        try:
            bundle = Bundle.from_bytes(self._ctx.store.get(key, max_bytes=MAX_EVIDENCE_BYTES))
        except ProtocolError:
            return None
        return bundle if bundle.compute_hash() == evidence_hash else None


def list_evidence(turns: Sequence[TurnItem], *, is_decided: bool) -> list[str]:
    """Return the hashes of the evidence that is public: none before all is decided."""
    return [turn.verdict.evidence_hash for turn in turns if is_decided and turn.verdict is not None and turn.signature]


def describe_votes(
    turns: Sequence[TurnItem], bundles: Mapping[str, Bundle], limits: Thresholds, *, is_decided: bool
) -> tuple[ShownVote, ...]:
    """Describe the turns of a submission.

    None are shown before all is decided: a validator could follow verdicts, and whoever knows its judges could bribe
    them.
    """
    votes = []
    for turn in turns if is_decided else ():
        verdict = turn.verdict if turn.signature else None
        bundle = None if verdict is None else bundles.get(verdict.evidence_hash)
        votes.append(
            ShownVote(
                validator=turn.validator or "",
                full=turn.full,
                stage=_name_stage(turn),
                outcome="" if verdict is None else _name_decision(verdict.outcome),
                reason="" if verdict is None else name_reason(verdict.reason),
                units=0 if verdict is None else verdict.units,
                evidence_hash="" if verdict is None else verdict.evidence_hash,
                numbers=() if bundle is None else tuple(_list_numbers(bundle, limits)),
                hardware=""
                if bundle is None
                else f"{bundle.engine.name} {bundle.engine.dtype}, {bundle.engine.hardware}",
            )
        )
    return tuple(votes)


def _name_stage(turn: TurnItem) -> str:
    if turn.lapsed:
        return "lapsed"
    if turn.verdict is not None:
        return "revealed"
    if turn.commitment is not None:
        return "committed"
    return "open" if turn.validator is None else "taken"


def _name_decision(outcome: int) -> str:
    return Decision(outcome).name.lower() if outcome in {each.value for each in Decision} else "unknown"


def _list_numbers(bundle: Bundle, limits: Thresholds) -> Iterable[ShownNumber]:
    """List the numbers of the evidence: those of a failure, and the sums of the distances that were measured."""
    for name, value in bundle.details.items():
        limit = getattr(limits, LIMITS[name], None) if name in LIMITS else None
        yield ShownNumber(name, _show(value), "" if limit is None else _show(limit))
    for statistic, each in bundle.sums.items():
        pooled = getattr(limits, statistic, None)
        limit = None if pooled is None else pooled.compute_limit(each.items, limits.false_reject_rate)
        yield ShownNumber(f"{statistic}_sum", _show(each.total), "" if limit is None else _show(limit))


def _show(value: float | int | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
