"""Looks at one pool from outside: are its epochs true, is everything of this account in them, what is due?

Nobody is trusted: headers, records and states come from the chain, and every epoch is computed again from its file. The
files are kept, so a reward can be claimed when their source is gone.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from covey.chain.events import FalseAcceptSlashed, SignerSlashed
from covey.chain.structs import Accusation, BondKind, Case, Challenge, ChallengeState, OnChainCaseState, PoolTerms
from covey.console.account import Account
from covey.console.receipt_files import SignedReceipt, read_receipt_file
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError
from covey.network.false_verdicts import FalseVerdict, list_false_verdicts, require_true
from covey.network.kept_rewards import REWARDS_FOLDER, KeptRewards, find_kept
from covey.network.watch_steps import (
    MISSING,
    CheckedEpoch,
    PromisedReceipt,
    WatchedPool,
    WatchStep,
    WatchVerb,
    build_about,
)
from covey.protocol.api.common import MAX_EPOCH_BYTES
from covey.protocol.api.public import RewardView, SubmissionDetail
from covey.protocol.canonical import sha256
from covey.protocol.epoch_file import EpochFile, require_rewards
from covey.protocol.ids import Address, Hash
from covey.protocol.merkle import compute_reward_leaf
from covey.protocol.object_keys import build_epoch_key
from covey.protocol.promises import KEPT_EPOCHS, compute_longest_promise
from covey.protocol.verdict_fees import VerdictFees
from covey.runtime.files import write_atomically

if TYPE_CHECKING:
    from covey.chain.events import EpochPosted
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

    def __init__(self, account: Account, who: Address, *, coordinator_url: str | None, folder: Path) -> None:
        """Watch the pool of an account for `who`. `folder` is that of a worker, and gets the folder `watch`."""
        self._account, self._who, self._url, self._folder = account, who, coordinator_url, folder
        self._files = folder / "watch" / "epochs"
        self._kept = KeptRewards(folder / "watch" / REWARDS_FOLDER)
        self._known: dict[int, tuple[Hash, EpochFile]] = {}
        """True files of epochs, by number, with the hash of their headers."""
        self._reported: dict[Hash, SubmissionDetail] = {}
        """Accused submissions with their verdicts, by receipt hash."""
        self._false: list[FalseVerdict] = []
        """Verdicts to slash for, of the last look."""

    def look(self) -> WatchedPool:
        """Read the chain and the files of epochs that are new.

        Raises TransientError if the node does not respond. A coordinator that does not is shown in the epochs.
        """
        account, pool = self._account, self._account.pool
        ledger, terms, now = account.contracts.ledger, account.contracts.pools.get_terms(pool), account.get_time()
        posted = account.history.list_epochs(pool)
        prices = account.history.read_prices(pool, posted, now=now)
        kept_on_chain = [each for each in posted[-KEPT_EPOCHS:] if ledger.is_posted(pool, each.record)]
        standing = [(each, prices.find(each.epoch)) for each in kept_on_chain]
        epochs = self._check_epochs(standing, terms)
        kept = [KeptRewards(path) for path in self._folder.glob(f"*/{REWARDS_FOLDER}")]
        found = find_kept(kept, account.history, pool=pool, contributor=self._who, now=now)
        accusations = account.history.list_accusations(pool)
        cases = [(accusation, account.contracts.court.get_case(accusation)) for accusation in accusations]
        self._false = list(self._find_false_verdicts(cases, terms))
        return WatchedPool(
            now=now,
            epochs=epochs,
            receipts=self._read_receipts(compute_longest_promise(terms.epoch_length)),
            cases=cases,
            false_verdicts=self._false,
            claimable=None if found is None else found[1],
            claimed=ledger.claimed_of(pool, self._who) + ledger.deduction_of(pool, self._who),
            ether=ledger.ether_of(self._who),
            contributor=self._who,
            is_arbiter=terms.arbiter == self._who,
        )

    def build_call(self, step: WatchStep) -> "Call":
        """Return the transaction of a step."""
        account, pool, contracts = self._account, self._account.pool, self._account.contracts
        if step.verb is WatchVerb.WITHDRAW_ETHER:
            return contracts.ledger.withdraw_ether()
        if step.verb in (WatchVerb.CLAIM, WatchVerb.DISABLE):
            posted = _require(account.history.find_epoch(pool, int(step.about)), f"epoch {step.about}")
            if step.verb is WatchVerb.DISABLE:
                return contracts.ledger.disable_epoch(pool, posted.record)
            view = self._find_view(posted.epoch)
            return contracts.ledger.claim(pool, posted.record, self._who, view.cumulative, view.proof)
        if step.verb in (WatchVerb.EXECUTE, WatchVerb.LAPSE):
            accusation = _require(account.history.find_accusation(Hash(step.about)), f"case {step.about}")
            court = contracts.court
            return court.execute(accusation) if step.verb is WatchVerb.EXECUTE else court.lapse(accusation)
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
        account, contracts = self._account, self._account.contracts
        penalties = {OnChainCaseState.SLASHED: terms.accept_penalty, OnChainCaseState.VETOED: terms.signer_penalty}
        ended = [(accusation, case) for accusation, case in cases if penalties.get(case.state)]
        for accusation, case in ended[-MAX_ENDED:]:
            detail = self._report(accusation.receipt_hash)
            found = [] if detail is None else list(list_false_verdicts(accusation, case, detail))
            if not found:
                continue
            told = account.history.list_case_events(accusation.receipt_hash)
            slashed = {event.validator for event in told if isinstance(event, (SignerSlashed, FalseAcceptSlashed))}
            for each in found:
                validator = each.verdict.validator
                bond = contracts.stakes.backing_of(account.pool, BondKind.VALIDATOR, validator)
                if bond and validator not in slashed:
                    yield each

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

    def _check_epochs(self, standing: "Sequence[tuple[EpochPosted, int]]", terms: PoolTerms) -> list[CheckedEpoch]:
        """Check the epochs that are not known to be true. Keep their files and the account's proofs.

        `standing` are the epochs that stand, oldest first, each with its price.
        """
        self._known = {
            posted.epoch: self._known[posted.epoch]
            for posted, _ in standing
            if self._known.get(posted.epoch, ("",))[0] == posted.record.header_hash
        }
        checked: list[CheckedEpoch] = []
        seen: set[Hash] = set()
        before: Mapping[Address, int] | None = {}
        for i, (posted, price) in enumerate(standing):
            trouble = text = ""
            if i == 0 and posted.record.cumulative != posted.record.reward:
                before = None  # Earlier epochs are not kept any more, so their rewards are not known here.
            try:
                if posted.epoch not in self._known:
                    file = self._read_true(posted, before=before, price=price, fees=terms.verdict_fees)
                    self._known[posted.epoch] = (posted.record.header_hash, file)
                file = self._known[posted.epoch][1]
                hashes = {leaf.receipt_hash for leaf in file.leaves}
                if doubled := seen & hashes:
                    del self._known[posted.epoch]
                    raise ProtocolError("bad_epoch", f"receipt {min(doubled)} is in an earlier epoch, too")
                seen |= hashes
                before = file.rewards
                self._keep_proof(file)
            except ProtocolError as error:
                trouble, text, before = error.code, f"epoch {posted.epoch} is false: {error.message}", None
            except TransientError as error:
                trouble, text, before = MISSING, f"the file of epoch {posted.epoch} is missing: {error.message}", None
            checked.append(
                CheckedEpoch(
                    record=posted.record,
                    disable_until=posted.record.final_at - terms.veto_window,
                    challenge_window=terms.challenge_window,
                    trouble=trouble,
                    text=text,
                )
            )
        return checked

    def _read_true(
        self, posted: "EpochPosted", *, before: Mapping[Address, int] | None, price: int, fees: VerdictFees
    ) -> EpochFile:
        """Return the file of an epoch. `before` are the rewards of the epoch before, None if they are not known.

        Raises ProtocolError if it is false, and TransientError if nobody gives it.
        """
        header, deployment = posted.header, self._account.deployment
        file = EpochFile.from_bytes(self._read_file(header.data_hash), header)
        require_rewards(
            file,
            header,
            before=before,
            reward_per_million=price,
            fees=fees,
            validators=self._account.history.list_validators(posted.pool) if header.verdicts else (),
            chain=deployment.chain_id,
            ledger=self._account.contracts.ledger.address,
        )
        return file

    def _read_file(self, data_hash: Hash) -> bytes:
        """Return an epoch's file. Raises TransientError if nobody gives the one that has this hash."""
        path = self._files / f"{data_hash}.json"
        if path.exists() and sha256(kept := path.read_bytes()) == data_hash:
            return kept
        if self._url is None:
            raise TransientError("no_coordinator", "no coordinator is named that could give it")
        key = build_epoch_key(self._account.pool, data_hash)
        try:
            data = asyncio.run(self._get(self._url, key))
        except (ProtocolError, OperatorError) as error:
            raise TransientError("no_epoch_file", error.message) from error
        if sha256(data) != data_hash:  # Garbage from a coordinator says nothing about the epoch.
            raise TransientError("no_epoch_file", "the coordinator gave another file")
        self._files.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
        return data

    async def _get(self, url: str, key: str) -> bytes:
        async with self._account.open_client(url) as client:
            return await client.get_public(key, max_bytes=MAX_EPOCH_BYTES)

    def _keep_proof(self, file: EpochFile) -> None:
        """Keep the proof of the account's reward, computed from the file."""
        amount = file.rewards.get(self._who)
        if amount is None or self._kept.read(file.epoch) is not None:
            return
        deployment, ledger = self._account.deployment, self._account.contracts.ledger.address
        leaf = compute_reward_leaf(
            chain=deployment.chain_id, ledger=ledger, pool=file.pool, contributor=self._who, cumulative=amount
        )
        proof = file.build_reward_tree(chain=deployment.chain_id, ledger=ledger).get_proof(leaf)
        self._kept.keep(RewardView(epoch=file.epoch, contributor=self._who, cumulative=amount, proof=tuple(proof)))

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

    def _read_receipts(self, longest_promise: int) -> list[PromisedReceipt]:
        included = {leaf.receipt_hash for _, file in self._known.values() for leaf in file.leaves}
        none = Challenge(challenger=self._who, answer_by=0, state=ChallengeState.NONE, answered_by=0, paid=0)
        found = []
        for signed in self._list_signed():
            assert signed.promise is not None
            is_included = signed.receipt_hash in included
            # Included ones are asked about no more, so that the node is not asked about thousands.
            challenge = none if is_included else self._account.contracts.ledger.get_challenge(signed.receipt_hash)
            found.append(
                PromisedReceipt(
                    receipt_hash=signed.receipt_hash,
                    due_by=signed.promise.due_by,
                    challengeable_until=signed.promise.due_by + longest_promise,
                    is_included=is_included,
                    challenge=challenge,
                )
            )
        return found


def _require(found: Found | None, what: str) -> Found:
    """Return what the last look has seen. Raises TransientError if it is gone, as after a reorganization."""
    if found is None:
        raise TransientError("seen_no_more", f"{what} is not found any more. Look again")
    return found
