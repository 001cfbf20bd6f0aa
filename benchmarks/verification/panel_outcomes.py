"""What becomes of a cheat's submission among validators of which some are hostile, lazy, silent or without a bond.

The coordinator's own rules (`coordinator.domain.panel` and `turn_order`) decide rows in memory, once for each order of
the validators.  A simulated clock moves on whenever nobody has anything to do.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import factorial, prod

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from coordinator.db.models import SubmissionRow, TurnRow, ValidatorRow
from coordinator.domain import panel, turn_order
from coordinator.domain.signing import SIGNING_SECONDS
from covey.protocol.ids import ZERO_HASH, Address, Hash, PoolId
from covey.protocol.messages import Verdict
from covey.protocol.params import PoolParams
from covey.protocol.seeding import compute_turn_order
from covey.protocol.verdict import Decision, Reason

ROUNDS = 1000
"""Maximum number of looks at a submission.  More of them mean that nothing can decide it."""
START = 1e9
"""Time of the countersignature, in Unix seconds."""


class Behavior(Enum):
    """How a validator behaves towards the cheat's work."""

    HONEST = "honest"
    """It replays what it is asked to, and rejects what it finds."""
    HOSTILE = "hostile"
    """It is the cheat's accomplice, and accepts."""
    LAZY = "lazy"
    """It accepts without looking, everybody's work alike."""
    SILENT = "silent"
    """It takes turns and never commits."""
    MUTE = "mute"
    """It commits and never reveals."""
    BONDLESS = "bondless"
    """It has no bond, so it is not asked."""
    LEAVING = "leaving"
    """It judges honestly, and withdraws its bond when the submission is decided."""


class Fate(Enum):
    """What becomes of a submission."""

    UNDRAWN = "undrawn"
    """It is accepted without a whole replay, and paid."""
    REPLAYED = "replayed"
    """It is accepted after a whole replay, and paid."""
    CASE = "case"
    """It is rejected, and as many validators with bonds sign as the court requires: it costs stake."""
    UNSIGNED = "unsigned"
    """It is rejected, but too few validators with bonds sign.  The contributor is suspended and keeps its stake."""
    VOID = "void"
    """It is neither paid nor punished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSubmission:
    """What the draw and the cheat decide of a submission.  Example: drawn whole, and its cheat can be found."""

    audited: bool
    """Whether it is drawn whole."""
    confirmed: bool
    """Whether two validators judge its drawn rows."""
    is_visible: bool
    """Whether an honest validator that replays what it is asked to finds the cheat."""


Fates = Mapping[JudgedSubmission, Mapping[Fate, float]]
"""Probabilities of the fates of each submission, over the orders of validators."""


def compute_fates(params: PoolParams, behaviors: Sequence[Behavior]) -> Fates:
    """Compute the fates of all submissions.

    Every order of the validators is equally likely, and so is every order of their behaviors.
    """
    names = [Address(to_checksum_address(keccak(text=f"validator {i}")[:20])) for i in range(len(behaviors))]
    by_name = dict(zip(names, behaviors, strict=True))
    draws = _find_draws(by_name)
    kinds = [
        JudgedSubmission(audited=audited, confirmed=confirmed, is_visible=is_visible)
        for audited in (False, True)
        for confirmed in ((False,) if audited else (False, True))
        for is_visible in (False, True)
    ]
    fates = {}
    for kind in kinds:
        counts = Counter(_Hearing(params, by_name, kind, each).hear() for each in draws)
        fates[kind] = {fate: count / len(draws) for fate, count in counts.items()}
    return fates


def _find_draws(behaviors: Mapping[Address, Behavior]) -> list[Hash]:
    """Return the hash of a drawing block for each order of the behaviors."""
    orders = factorial(len(behaviors)) // prod(map(factorial, Counter(behaviors.values()).values()))
    found: dict[tuple[Behavior, ...], Hash] = {}
    block = 0
    while len(found) < orders:
        draw = _hash(f"block {block}")
        order = compute_turn_order(_hash("receipt"), draw, list(behaviors))
        found.setdefault(tuple(behaviors[name] for name in order), draw)
        block += 1
    return list(found.values())


def _hash(text: str) -> Hash:
    return Hash("0x" + keccak(text=text).hex())


class _Hearing:
    """One submission before the validators, from its draw to its decision and its case."""

    def __init__(
        self, params: PoolParams, behaviors: Mapping[Address, Behavior], submission: JudgedSubmission, draw: Hash
    ) -> None:
        self._params, self._behaviors, self._is_visible = params, behaviors, submission.is_visible
        self._now = START
        self._standing: dict[str, ValidatorRow] = {
            name: ValidatorRow(address=name, contradicted=0, failed_at=0.0) for name in behaviors
        }
        self._active = {name for name, behavior in behaviors.items() if behavior is not Behavior.BONDLESS}
        self._row = SubmissionRow(
            receipt_hash=_hash("receipt"),
            work_key=_hash("file"),
            draw=draw,
            audited=submission.audited,
            confirmed=submission.confirmed,
            contract="",
            task=1,
            groups=params.groups_per_task,
            receipt_units=1,
            live_groups=0,
            next_check_at=0.0,
        )

    def hear(self) -> Fate:
        """Return the fate of the submission."""
        row, validators = self._row, list(self._behaviors)
        for _ in range(ROUNDS):
            is_due = self._now >= START + self._params.receipt_seconds
            look = panel.advance_turns(
                self._params,
                [row],
                able={row.receipt_hash: validators},
                active=self._active,
                due={row.receipt_hash} if is_due else set(),
                now=self._now,
            )
            for name in look.late:
                self._standing[name].failed_at = self._now
            if look.decided:
                return self._settle(look.decided[0].ruling)
            panel.open_missing(self._params, row, validators=validators, now=self._now)
            self._act()
        raise RuntimeError(f"{ROUNDS} looks decide nothing")

    def _settle(self, ruling: panel.Ruling) -> Fate:
        row = self._row
        if ruling.decision is Decision.ACCEPT:
            return Fate.REPLAYED if row.audited else Fate.UNDRAWN
        if ruling.decision is not Decision.REJECT:
            return Fate.VOID
        row.reason = ruling.reason
        self._active -= {name for name, behavior in self._behaviors.items() if behavior is Behavior.LEAVING}
        end = self._now + SIGNING_SECONDS
        while self._now < end:
            active = [name for name in self._behaviors if name in self._active]
            panel.open_signing(self._params, row, validators=active, active=active, now=self._now)
            if self._count_signatures() >= self._params.quorum:
                return Fate.CASE
            if not any(turn.verdict is None and not turn.lapsed for turn in row.turns):
                return Fate.UNSIGNED
            self._act()
        return Fate.UNSIGNED

    def _count_signatures(self) -> int:
        verdicts = [turn.verdict for turn in self._row.turns if turn.full and turn.verdict is not None]
        return sum(each.outcome == Decision.REJECT and each.validator in self._active for each in verdicts)

    def _act(self) -> None:
        """Let every validator do what it can do now. If none can do anything, let time pass until a turn ends.

        Turns that nobody takes open to one more validator after a while, so that time passes faster and faster.
        """
        if not (self._take_turns() | self._commit() | self._reveal()):
            pending = [each for each in self._row.turns if each.verdict is None and not each.lapsed]
            ends = [turn.deadline for turn in pending if turn.deadline > self._now]
            self._now = min([*ends, self._now + max(self._params.turn_seconds, self._now - START)])

    def _take_turns(self) -> bool:
        taken = False
        for turn in self._row.turns:
            if turn.validator is None and not turn.lapsed:
                place, name = min(self._list_places(turn), default=(None, None))
                if place is not None and name is not None:
                    panel.take(self._params, self._row, turn, validator=name, place=place, now=self._now)
                    taken = True
        return taken

    def _list_places(self, turn: TurnRow) -> list[tuple[int, Address]]:
        """List the validators that may take a free turn, each with its place in the order."""
        for standing in self._standing.values():
            standing.seen_at = self._now  # all of them ask
        validators = list(self._behaviors)
        places = [
            turn_order.find_place(
                self._params,
                self._row,
                turn,
                validator=name,
                validators=validators,
                standing=self._standing,
                now=self._now,
            )
            for name in validators
        ]
        named = zip(places, validators, strict=True)
        return [(place, name) for place, name in named if place is not None and name in self._active]

    def _commit(self) -> bool:
        done = False
        for turn in self._list_pending():
            if turn.commitment is None and self._behaviors[Address(turn.validator or "")] is not Behavior.SILENT:
                turn.commitment, done = _hash("commitment"), True
        panel.start_reveals(self._params, self._row, self._now)
        return done

    def _reveal(self) -> bool:
        if not panel.is_revealing(self._params, self._row):
            return False
        turns = [
            each for each in self._list_pending() if self._behaviors[Address(each.validator or "")] is not Behavior.MUTE
        ]
        for turn in turns:
            turn.verdict = self._build_verdict(Address(turn.validator or ""))
        return bool(turns)

    def _list_pending(self) -> list[TurnRow]:
        turns = turn_order.list_current(self._row)
        return [turn for turn in turns if turn.validator is not None and turn.verdict is None and not turn.lapsed]

    def _build_verdict(self, validator: Address) -> Verdict:
        accepts = not self._is_visible or self._behaviors[validator] in (Behavior.HOSTILE, Behavior.LAZY)
        reason = Reason.NONE if accepts else Reason.TOKEN_MARGIN
        return Verdict(
            pool=PoolId(1),
            receipt_hash=Hash(self._row.receipt_hash),
            work_key=Hash(self._row.work_key),
            validator=validator,
            outcome=Decision.ACCEPT if accepts else Decision.REJECT,
            reason=reason,
            severity=reason.severity,
            units=1 if accepts else 0,
            evidence_hash=ZERO_HASH,
            deadline=1 << 40,
        )
