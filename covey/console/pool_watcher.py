"""Looks at one pool from outside: are its epochs true, is everything of this account in them, what is due?

Nobody is trusted: headers, records and states come from the chain, and every epoch is computed again from its file. The
files are kept, so a reward can be claimed when their source is gone.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from covey.chain.attestations import read_attestations
from covey.chain.events import AttesterSlashed, EpochPosted, FalseAcceptSlashed, SignerSlashed
from covey.chain.structs import (
    Accusation,
    BondKind,
    Case,
    Challenge,
    ChallengeState,
    EpochRecord,
    OnChainCaseState,
    PoolTerms,
)
from covey.console.account import Account
from covey.console.receipt_files import SignedReceipt, read_receipt_file
from covey.console.watched_epochs import WatchedEpochs, get_public
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError
from covey.network.equivocations import MAX_CANDIDATES, Equivocation, is_contradiction
from covey.network.false_verdicts import FalseVerdict, list_false_verdicts, require_true
from covey.network.kept_rewards import REWARDS_FOLDER, KeptRewards, find_kept
from covey.network.own_receipts import ReceiptFinding, check_leaf
from covey.network.pool_history import PoolHistory
from covey.network.watch_steps import PromisedReceipt, WatchedPool, WatchStep, WatchVerb, build_about
from covey.protocol.api.common import MAX_EVIDENCE_BYTES
from covey.protocol.api.public import RewardView, SubmissionDetail
from covey.protocol.eip712 import Domain, require_signer
from covey.protocol.epochs import WorkLeaf
from covey.protocol.evidence import Bundle
from covey.protocol.ids import Address, Hash
from covey.protocol.object_keys import build_evidence_key
from covey.protocol.prices import ScheduledPrice, compute_reward, find_price
from covey.protocol.promises import KEPT_EPOCHS, compute_longest_promise
from covey.protocol.verdict import Decision

if TYPE_CHECKING:
    from covey.chain.contracts import EpochLedger, StakeManager
    from covey.chain.json_rpc import Call

Found = TypeVar("Found")
SENT_FILES = "*/outgoing/sent/*.json"
"""Receipts with the operator's promise, in the folder of `covey join`."""
MAX_ENDED = 50
"""Maximum number of newest ended cases whose verdicts are looked at."""
MAX_RECEIPTS = 10_000
"""Maximum number of newest receipts to look at. A contributor signs fewer in the windows of an epoch."""


class PoolWatcher:
    """Example: `list_steps(PoolWatcher(account, who, coordinator_url=url, folder=Path("worker")).look())`."""

    def __init__(
        self, account: Account, who: Address, *, coordinator_url: str | None, folder: Path, sent: str = SENT_FILES
    ) -> None:
        """Watch the pool of an account for `who`.

        `folder` is that of a worker, and gets the folder `watch`. `sent` selects the receipts in it.
        """
        self._account, self._who, self._url, self._folder = account, who, coordinator_url, folder
        self._sent = sent
        self._history = PoolHistory(
            client=account.client,
            contracts=account.contracts,
            pool=account.pool,
            file=folder / "watch" / f"events-{account.pool}.json",
        )
        self._epochs = WatchedEpochs(
            account,
            who,
            self._history,
            url=coordinator_url,
            folder=folder / "watch" / "epochs",
            kept=KeptRewards(folder / "watch" / REWARDS_FOLDER),
        )
        self._reads: dict[object, object] = {}
        """Answers of the contracts at the newest block, of which a pool has many."""
        self._reported: dict[Hash, SubmissionDetail] = {}
        """Accused submissions with their verdicts, by receipt hash."""
        self._false: list[FalseVerdict] = []
        """Verdicts to slash for, of the last look."""
        self._signatures: dict[Hash, str] = {}
        """Nodes' signatures that evidence has shown, by receipt hash."""
        self._attesters: dict[str, tuple[EpochPosted, str]] = {}
        """Attestations to slash for, of the last look, by header hash and validator."""
        self._signed_headers: dict[Hash, dict[Address, str]] = {}
        """Attestations of epochs that the arbiter called false, by header hash and validator."""
        self._contradictions: dict[str, Equivocation] = {}
        """Equivocations that are not slashed, of the last look, by both receipt hashes."""

    def look(self) -> WatchedPool:
        """Read what is new on the chain, and the files of epochs that are new.

        Raises TransientError if the node does not respond. A coordinator that does not is shown in the epochs.
        """
        account, pool, contracts, history = self._account, self._account.pool, self._account.contracts, self._history
        if history.refresh():
            self._reads.clear()
        ledger, terms, now = contracts.ledger, contracts.pools.get_terms(pool), account.get_time()
        posted = history.list_epochs(pool)
        prices = history.read_prices(pool, posted, now=now)
        kept_on_chain = [each for each in posted[-KEPT_EPOCHS:] if self._is_posted(each.record)]
        standing = [(each, prices.find(each.epoch)) for each in kept_on_chain]
        signed = list(self._list_signed())
        epochs = self._epochs.check(standing, terms, {each.receipt_hash for each in signed})
        kept = [KeptRewards(path) for path in self._folder.glob(f"*/{REWARDS_FOLDER}")]
        found = find_kept(kept, history, pool=pool, contributor=self._who, now=now)
        cases = [(accusation, self._get_case(accusation)) for accusation in history.list_accusations(pool)]
        self._false = list(self._find_false_verdicts(cases, terms))
        self._contradictions = dict(self._find_equivocations())
        standing_now = {each.epoch for each in kept_on_chain}
        fallen = [each for each in posted[-KEPT_EPOCHS:] if each.epoch not in standing_now]
        self._attesters = dict(self._find_attesters(fallen)) if terms.signer_penalty else {}
        leaves = self._epochs.find_own()
        return WatchedPool(
            now=now,
            epochs=epochs,
            receipts=self._read_receipts(signed, leaves, terms, prices.prices, now=now),
            findings=list(self._check_units(signed, leaves)),
            cases=cases,
            attesters={about: found[0].epoch for about, found in self._attesters.items()},
            false_verdicts=self._false,
            equivocations=self._contradictions,
            claimable=None if found is None else found[1],
            claimed=ledger.claimed_of(pool, self._who) + ledger.deduction_of(pool, self._who),
            ether=ledger.ether_of(self._who),
            credits={
                name: credit for name, holder in self._holders.items() if (credit := holder.credit_of(pool, self._who))
            },
            contributor=self._who,
            is_arbiter=terms.arbiter == self._who,
        )

    @property
    def _holders(self) -> "dict[str, EpochLedger | StakeManager]":
        """Contracts that may owe a credit, by what they hold."""
        return {"rewards": self._account.contracts.ledger, "stake": self._account.contracts.stakes}

    def _read_once(self, key: object, read: Callable[[], Found]) -> Found:
        """Return what a contract has answered at the newest block, so that an idle chain is not asked again."""
        if key not in self._reads:
            self._reads[key] = read()
        return cast(Found, self._reads[key])

    def _is_posted(self, record: EpochRecord) -> bool:
        ledger = self._account.contracts.ledger
        return self._read_once(record, lambda: ledger.is_posted(self._account.pool, record))

    def _get_case(self, accusation: Accusation) -> Case:
        return self._read_once(accusation, lambda: self._account.contracts.court.get_case(accusation))

    def _get_challenge(self, receipt_hash: Hash) -> Challenge:
        ledger = self._account.contracts.ledger
        return self._read_once(receipt_hash, lambda: ledger.get_challenge(receipt_hash))

    def _get_bond(self, validator: Address) -> int:
        account, stakes = self._account, self._account.contracts.stakes
        return self._read_once(validator, lambda: stakes.backing_of(account.pool, BondKind.VALIDATOR, validator))

    def build_call(self, step: WatchStep) -> "Call":
        """Return the transaction of a step."""
        pool, contracts = self._account.pool, self._account.contracts
        if step.verb is WatchVerb.WITHDRAW_ETHER:
            return contracts.ledger.withdraw_ether()
        if step.verb is WatchVerb.WITHDRAW_CREDIT:
            return self._holders[step.about].withdraw_credit(pool, self._who, self._who)
        if step.verb is WatchVerb.SLASH_EQUIVOCATION:
            both = _require(self._contradictions.get(step.about), f"the equivocation {step.about}")
            return contracts.court.slash_for_equivocation(
                both.first, both.first_signature, both.second, both.second_signature
            )
        if step.verb in (WatchVerb.CLAIM, WatchVerb.DISABLE):
            posted = _require(self._history.find_epoch(pool, int(step.about)), f"epoch {step.about}")
            if step.verb is WatchVerb.DISABLE:
                return contracts.ledger.disable_epoch(pool, posted.record, is_false=step.is_false)
            view = self._find_view(posted.epoch)
            return contracts.ledger.claim(pool, posted.record, self._who, view.cumulative, view.proof)
        if step.verb in (WatchVerb.EXECUTE, WatchVerb.LAPSE):
            accusation = _require(self._history.find_accusation(Hash(step.about)), f"case {step.about}")
            court = contracts.court
            return court.execute(accusation) if step.verb is WatchVerb.EXECUTE else court.lapse(accusation)
        if step.verb is WatchVerb.SLASH_ATTESTER:
            attested, signature = _require(self._attesters.get(step.about), f"the attestation {step.about}")
            return contracts.court.slash_attester(attested.header, signature)
        if step.verb in (WatchVerb.SLASH_SIGNER, WatchVerb.SLASH_ACCEPT):
            found = _require(next((each for each in self._false if build_about(each) == step.about), None), step.about)
            slash = contracts.court.slash_false_accept if found.is_accept else contracts.court.slash_signer
            return slash(found.accusation, found.verdict, found.signature)
        signed = _require(
            next((each for each in self._list_signed() if each.receipt_hash == step.about), None),
            f"receipt {step.about}",
        )
        if step.verb is WatchVerb.RESOLVE:
            return contracts.ledger.resolve_omission(signed.receipt)
        promise = _require(signed.promise, f"the promise for {step.about}")
        return contracts.ledger.challenge_omission(
            signed.receipt,
            node_signature=signed.signature,
            promise=promise,
            promise_signature=signed.promise_signature,
        )

    def _find_false_verdicts(
        self, cases: Sequence[tuple[Accusation, Case]], terms: PoolTerms
    ) -> Iterator[FalseVerdict]:
        """Yield the verdicts that cost a bond now. Those of a coordinator that is silent or lies are left out."""
        penalties = {OnChainCaseState.SLASHED: terms.accept_penalty, OnChainCaseState.VETOED: terms.signer_penalty}
        ended = [(accusation, case) for accusation, case in cases if penalties.get(case.state)]
        for accusation, case in ended[-MAX_ENDED:]:
            detail = self._report(accusation.receipt_hash)
            found = [] if detail is None else list(list_false_verdicts(accusation, case, detail))
            if not found:
                continue
            told = self._history.list_case_events(accusation.receipt_hash)
            slashed = {event.validator for event in told if isinstance(event, (SignerSlashed, FalseAcceptSlashed))}
            for each in found:
                validator = each.verdict.validator
                if self._get_bond(validator) and validator not in slashed:
                    yield each

    def _find_attesters(self, fallen: Sequence[EpochPosted]) -> Iterator[tuple[str, tuple[EpochPosted, str]]]:
        """Yield what attesters of epochs that the arbiter called false have signed, by header hash and validator."""
        account, ledger = self._account, self._account.contracts.ledger
        domain = Domain(chain_id=account.deployment.chain_id, contract=ledger.address)
        for posted in fallen:
            header_hash = posted.record.header_hash
            if not self._read_once(("refuted", header_hash), partial(ledger.was_refuted, header_hash)):
                continue
            if header_hash not in self._signed_headers:
                self._signed_headers[header_hash] = read_attestations(account.client, posted, domain)
            told = self._history.list_case_events(header_hash)
            slashed = {event.validator for event in told if isinstance(event, AttesterSlashed)}
            for validator, signature in self._signed_headers[header_hash].items():
                if validator not in slashed and self._get_bond(validator):
                    yield f"{header_hash} {validator}", (posted, signature)

    def _report(self, receipt_hash: Hash) -> SubmissionDetail | None:
        """Return what the coordinator reports of a submission. It is asked once. None if it gives no true answer."""
        if receipt_hash not in self._reported and self._url is not None:
            try:
                detail = self._account.get_submission(self._url, receipt_hash)
                require_true(detail, receipt_hash, pool=self._account.pool, domain=self._account.receipt_domain)
            except (ProtocolError, OperatorError, TransientError):
                return None
            self._reported[receipt_hash] = detail
        return self._reported.get(receipt_hash)

    def _find_view(self, epoch: int) -> RewardView:
        views = (KeptRewards(path).read(epoch) for path in self._folder.glob(f"*/{REWARDS_FOLDER}"))
        own = (view for view in views if view is not None and view.contributor == self._who)
        return _require(next(own, None), f"the proof of epoch {epoch}")

    def _list_signed(self) -> Iterator[SignedReceipt]:
        """Yield the newest receipts of this pool and account that have a promise. Damaged files are left out."""
        paths = sorted(self._folder.glob(SENT_FILES), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in paths[:MAX_RECEIPTS]:
            try:
                signed = read_receipt_file(path)
            except CoveyError:
                continue
            is_ours = (signed.receipt.pool, signed.receipt.contributor) == (self._account.pool, self._who)
            if is_ours and signed.promise is not None:
                yield signed

    def _read_receipts(
        self,
        signed: Sequence[SignedReceipt],
        leaves: Mapping[Hash, tuple[int, WorkLeaf]],
        terms: PoolTerms,
        prices: Sequence[ScheduledPrice],
        *,
        now: int,
    ) -> list[PromisedReceipt]:
        none = Challenge(challenger=self._who, answer_by=0, state=ChallengeState.NONE, answered_by=0, paid=0)
        found, longest_promise = [], compute_longest_promise(terms.epoch_length)
        for each in signed:
            assert each.promise is not None
            is_included = each.receipt_hash in leaves
            # Included ones are asked about no more, so that the node is not asked about thousands.
            challenge = none if is_included else self._get_challenge(each.receipt_hash)
            is_payable = challenge.state is ChallengeState.UPHELD and now <= challenge.answer_by + terms.unbond_window
            found.append(
                PromisedReceipt(
                    receipt_hash=each.receipt_hash,
                    due_by=each.promise.due_by,
                    challengeable_until=each.promise.due_by + longest_promise,
                    is_included=is_included,
                    challenge=challenge,
                    payable=self._compute_payable(each, challenge, prices) if is_payable else 0,
                )
            )
        return found

    def _compute_payable(self, signed: SignedReceipt, challenge: Challenge, prices: Sequence[ScheduledPrice]) -> int:
        """Return what the operator's bond could pay now for an upheld challenge: what is due, at most half of it."""
        pool, stakes = self._account.pool, self._account.contracts.stakes
        bond = self._read_once("bond", lambda: stakes.backing_of(pool, BondKind.OPERATOR, self._who))
        price = find_price(prices, min(signed.receipt.deadline, challenge.answer_by))
        return max(0, min(compute_reward(signed.receipt.units, price) - challenge.paid, bond // 2))

    def _check_units(
        self, signed: Sequence[SignedReceipt], leaves: Mapping[Hash, tuple[int, WorkLeaf]]
    ) -> Iterator[ReceiptFinding]:
        """Yield what is wrong with the leaves of the account's own receipts."""
        validators = self._history.list_validators(self._account.pool) if signed else set()
        for each in signed:
            if each.receipt_hash not in leaves:
                continue
            epoch, leaf = leaves[each.receipt_hash]
            is_rejected = False
            if leaf.outcome == Decision.REJECT:
                detail = self._report(each.receipt_hash)
                is_rejected = detail is not None and any(
                    verdict.outcome == Decision.REJECT and verdict.validator in validators
                    for verdict in detail.verdicts
                )
            if finding := check_leaf(each.receipt, leaf, epoch=epoch, is_rejected=is_rejected):
                yield finding

    def _find_equivocations(self) -> Iterator[tuple[str, Equivocation]]:
        """Yield the equivocations in epochs that were not slashed, with both receipt hashes."""
        for hashes in self._epochs.list_candidates()[:MAX_CANDIDATES]:
            details = [self._report(each) for each in hashes]
            receipts = [each.receipt.to_message() for each in details if each is not None and each.receipt is not None]
            if len(receipts) < 2 or not is_contradiction(*receipts):
                continue
            first, second = receipts
            if not self._history.is_slashed_for(first):
                signatures = [self._find_signature(each) for each in details if each is not None]
                yield (
                    " ".join(hashes),
                    Equivocation(
                        first=first, first_signature=signatures[0], second=second, second_signature=signatures[1]
                    ),
                )

    def _find_signature(self, detail: SubmissionDetail) -> str:
        """Return the node's signature on a receipt, from the evidence of a validator. Empty if none has it."""
        key = detail.receipt_hash
        if key not in self._signatures and detail.receipt is not None and self._url is not None:
            for evidence_hash in detail.evidence_hashes:
                object_key = build_evidence_key(self._account.pool, evidence_hash)
                try:
                    data = asyncio.run(get_public(self._account, self._url, object_key, max_bytes=MAX_EVIDENCE_BYTES))
                    bundle = Bundle.from_bytes(data)
                    receipt = detail.receipt.to_message()
                    require_signer(receipt, self._account.receipt_domain, bundle.signature, receipt.node)
                except (TransientError, ProtocolError, OperatorError):
                    continue  # Another validator's evidence may have it.
                self._signatures[key] = bundle.signature
                break
        return self._signatures.get(key, "")


def _require(found: Found | None, what: str) -> Found:
    """Return what the last look has seen. Raises TransientError if it is gone, as after a reorganization."""
    if found is None:
        raise TransientError("seen_no_more", f"{what} is not found any more. Look again")
    return found
