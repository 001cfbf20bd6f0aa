"""What a watcher of a pool does next, decided from what it has seen. It reads no clock and no chain."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from covey.chain.contracts import CASE_GRACE
from covey.chain.structs import Accusation, Case, Challenge, ChallengeState, EpochRecord, OnChainCaseState
from covey.network.equivocations import Equivocation
from covey.network.false_verdicts import FalseVerdict
from covey.network.own_receipts import DIFFERENT, ReceiptFinding
from covey.protocol.api.public import RewardView
from covey.protocol.ids import Hash


class WatchVerb(StrEnum):
    """Transactions that a watcher sends."""

    CLAIM = "claim"
    CHALLENGE = "challenge"
    RESOLVE = "resolve"
    WITHDRAW_ETHER = "withdraw-ether"
    EXECUTE = "execute"
    LAPSE = "lapse"
    DISABLE = "disable"
    SLASH_SIGNER = "slash-signer"
    SLASH_ACCEPT = "slash-accept"
    SLASH_ATTESTER = "slash-attester"
    SLASH_EQUIVOCATION = "slash-equivocation"
    WITHDRAW_CREDIT = "withdraw-credit"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchStep:
    """A transaction that is due."""

    verb: WatchVerb
    about: str
    """Receipt hash, epoch number or address that the transaction is about; receipt hash and validator; both receipt
    hashes of an equivocation; or "rewards" or "stake", which is owed as a credit."""
    text: str
    """Why it is due, as a sentence."""
    is_false: bool = False
    """Whether the epoch to disable is false, so that its attesters can be slashed, and not only without a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromisedReceipt:
    """A countersigned receipt of the account's own nodes. Times are in Unix seconds."""

    receipt_hash: Hash
    due_by: int
    challengeable_until: int
    is_included: bool
    """Whether an epoch that stands includes it."""
    challenge: Challenge
    payable: int = 0
    """Amount that the operator's bond can pay now for an upheld challenge, because it was too small before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedEpoch:
    """An epoch on chain that stands, and what is wrong with its file."""

    record: EpochRecord
    disable_until: int
    """Unix time in seconds until which the arbiter can disable it."""
    challenge_window: int
    trouble: str
    """Code of what is wrong. Empty if the file proves both roots."""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedPool:
    """Everything that decides what is due."""

    now: int
    """Time of the chain's newest block in Unix seconds."""
    epochs: Sequence[CheckedEpoch]
    receipts: Sequence[PromisedReceipt]
    cases: Sequence[tuple[Accusation, Case]]
    attesters: Mapping[str, int]
    """Epochs that the arbiter disabled as false, by header hash and validator that attested it and has a bond."""
    false_verdicts: Sequence[FalseVerdict]
    """Verdicts that cases have refuted, of validators that have a bond and were not slashed for them."""
    equivocations: Mapping[str, Equivocation]
    """Equivocations that the court has not slashed, by both receipt hashes."""
    findings: Sequence[ReceiptFinding]
    """What is wrong with the account's own receipts in epochs that stand."""
    claimable: RewardView | None
    """Reward by the newest final epoch that stands, with its proof. None if nothing is earned."""
    claimed: int
    """Amount that was claimed or deducted already, in the token's smallest unit."""
    ether: int
    """Wei that are returned for upheld challenges."""
    credits: Mapping[str, int]
    """Amounts that the token refused to pay to the account, in its smallest unit, of "rewards" and "stake"."""
    contributor: str
    is_arbiter: bool


MAX_CHALLENGES = 16
"""Maximum number of challenges that begin after one look. Each takes a bond until it is answered or upheld."""
MISSING = "missing"
"""Code of an epoch whose file nobody gives."""


def list_steps(seen: WatchedPool) -> list[WatchStep]:
    """Return the transactions that are due, the most urgent first."""
    return [
        *_list_disabling(seen),
        *_list_receipts(seen),
        *_list_cases(seen),
        *_list_false_verdicts(seen),
        *_list_attesters(seen),
        *_list_equivocations(seen),
        *_list_money(seen),
    ]


def _list_disabling(seen: WatchedPool) -> Iterator[WatchStep]:
    """Disabling an epoch disables all later ones, so only the first bad one is named.

    A file that is only missing gets half of the challenge window to appear.
    """
    for epoch in seen.epochs:
        patience = epoch.challenge_window // 2 if epoch.trouble == MISSING else epoch.challenge_window
        is_time = seen.now >= epoch.disable_until - patience
        if seen.is_arbiter and epoch.trouble and is_time and seen.now < epoch.disable_until:
            is_false = epoch.trouble != MISSING
            about = str(epoch.record.epoch)
            yield WatchStep(verb=WatchVerb.DISABLE, about=about, text=epoch.text, is_false=is_false)
            return


def _list_receipts(seen: WatchedPool) -> Iterator[WatchStep]:
    """While the file of an epoch is missing, it may hold any receipt. A challenge that is answered loses its bond."""
    is_known = not any(epoch.trouble == MISSING for epoch in seen.epochs)
    challenges = 0
    for each in seen.receipts:
        state, challenge = each.challenge.state, each.challenge
        if state is ChallengeState.OPEN:
            if seen.now >= challenge.answer_by:
                text = f"nobody has shown receipt {each.receipt_hash} in an epoch"
                yield WatchStep(verb=WatchVerb.RESOLVE, about=each.receipt_hash, text=text)
            continue
        if each.payable:
            text = f"the operator's bond can pay {each.payable} more for receipt {each.receipt_hash}"
            yield WatchStep(verb=WatchVerb.RESOLVE, about=each.receipt_hash, text=text)
        is_open = state is not ChallengeState.UPHELD and not each.is_included
        is_overdue = each.due_by < seen.now <= each.challengeable_until
        if is_open and is_overdue and is_known and challenges < MAX_CHALLENGES:
            challenges += 1
            text = f"receipt {each.receipt_hash} is overdue since {each.due_by}"
            yield WatchStep(verb=WatchVerb.CHALLENGE, about=each.receipt_hash, text=text)


def _list_cases(seen: WatchedPool) -> Iterator[WatchStep]:
    for accusation, case in seen.cases:
        if case.state is not OnChainCaseState.LOCKED or seen.now < case.veto_until:
            continue
        if seen.now < case.veto_until + CASE_GRACE:
            text = f"the veto window of the case against {accusation.contributor} is over"
            yield WatchStep(verb=WatchVerb.EXECUTE, about=accusation.receipt_hash, text=text)
        elif accusation.contributor == seen.contributor:
            text = "nobody has executed the case against this account in time"
            yield WatchStep(verb=WatchVerb.LAPSE, about=accusation.receipt_hash, text=text)


def _list_false_verdicts(seen: WatchedPool) -> Iterator[WatchStep]:
    for each in seen.false_verdicts:
        validator = each.verdict.validator
        verb, text = WatchVerb.SLASH_SIGNER, f"validator {validator} signed a case that the arbiter vetoed"
        if each.is_accept:
            verb, text = WatchVerb.SLASH_ACCEPT, f"validator {validator} accepted the work of a cheat"
        yield WatchStep(verb=verb, about=build_about(each), text=text)


def _list_equivocations(seen: WatchedPool) -> Iterator[WatchStep]:
    for about, each in seen.equivocations.items():
        if each.is_provable and each.first.contributor != seen.contributor:
            text = f"node {each.first.node} signed two files for lease {each.first.lease} of task {each.first.task}"
            yield WatchStep(verb=WatchVerb.SLASH_EQUIVOCATION, about=about, text=text)


def _list_attesters(seen: WatchedPool) -> Iterator[WatchStep]:
    for about, epoch in seen.attesters.items():
        text = f"validator {about.split()[1]} attested epoch {epoch}, which the arbiter disabled as false"
        yield WatchStep(verb=WatchVerb.SLASH_ATTESTER, about=about, text=text)


def build_about(false: FalseVerdict) -> str:
    """Return what a step about a false verdict is about: receipt hash and validator."""
    return f"{false.accusation.receipt_hash} {false.verdict.validator}"


def _list_money(seen: WatchedPool) -> Iterator[WatchStep]:
    view = seen.claimable
    if view is not None and view.cumulative > seen.claimed:
        text = f"{view.cumulative - seen.claimed} are earned by epoch {view.epoch} and not claimed"
        yield WatchStep(verb=WatchVerb.CLAIM, about=str(view.epoch), text=text)
    if seen.ether:
        text = f"{seen.ether} wei are returned for upheld challenges"
        yield WatchStep(verb=WatchVerb.WITHDRAW_ETHER, about=seen.contributor, text=text)
    for name, credit in seen.credits.items():
        text = f"the token refused to pay {credit} of {name}"
        yield WatchStep(verb=WatchVerb.WITHDRAW_CREDIT, about=name, text=text)


def list_reports(seen: WatchedPool) -> Iterator[dict[str, str | int]]:
    """Yield what a watcher says of each epoch, of own receipts that are paid otherwise, and of equivocations."""
    for epoch in seen.epochs:
        number = epoch.record.epoch
        code, text = (epoch.trouble, epoch.text) if epoch.trouble else ("true", f"epoch {number} is true")
        yield {"event": "epoch", "epoch": number, "code": code, "text": text}
    for finding in seen.findings:
        yield {"event": "receipt", "about": finding.receipt_hash, "code": finding.code, "text": finding.text}
    for about, each in seen.equivocations.items():
        text = f"node {each.first.node} signed two files for lease {each.first.lease} of task {each.first.task}"
        if not each.is_provable:
            text += ", but its signatures are not published, so it cannot be slashed"
        code = "provable" if each.is_provable else "unproven"
        yield {"event": "equivocation", "about": about, "code": code, "text": text}


def is_sound(seen: WatchedPool) -> bool:
    """Return whether all epochs are true, and pay the account's receipts as they say."""
    is_paid = not any(finding.code in DIFFERENT for finding in seen.findings)
    return is_paid and not any(epoch.trouble for epoch in seen.epochs)
