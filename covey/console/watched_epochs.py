"""The epochs of a pool that a watcher has checked, their files, and the proofs of one account."""

import asyncio
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from covey.chain.structs import PoolTerms
from covey.console.account import Account
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.network.equivocations import MAX_CANDIDATES, PackedLeaves, list_candidates
from covey.network.kept_rewards import KeptRewards, build_reward
from covey.network.pool_history import PoolHistory
from covey.network.watch_steps import MISSING, CheckedEpoch
from covey.protocol.api.common import MAX_EPOCH_BYTES
from covey.protocol.canonical import sha256
from covey.protocol.epoch_file import EpochFile, require_rewards
from covey.protocol.epochs import WorkLeaf
from covey.protocol.ids import Address, Hash
from covey.protocol.object_keys import build_epoch_key
from covey.protocol.verdict_fees import VerdictFees
from covey.runtime.files import write_atomically

if TYPE_CHECKING:
    from covey.chain.events import EpochPosted


@dataclass(frozen=True, slots=True)
class TrueEpoch:
    """What is remembered of an epoch's file, which may have thousands of leaves and is on the disk."""

    header_hash: Hash
    rewards: Mapping[Address, int]
    packed: PackedLeaves
    own: tuple[WorkLeaf, ...]
    """Leaves of the account and of its receipts."""
    candidates: tuple[tuple[Hash, Hash], ...]
    """Receipts that may contradict each other, one of them in this epoch and the other in this or an earlier one."""


class WatchedEpochs:
    """Computes epochs again from their files. Example: `WatchedEpochs(...).check(standing, terms, receipts)`."""

    def __init__(
        self, account: Account, who: Address, history: PoolHistory, *, url: str | None, folder: Path, kept: KeptRewards
    ) -> None:
        """Keep files in `folder`, and in `kept` the proofs of `who`. `url` is a coordinator's. None: ask nobody."""
        self._account, self._who, self._history, self._url = account, who, history, url
        self._files, self._kept = folder, kept
        self._known: dict[int, TrueEpoch] = {}
        """Epochs with true files, by number."""

    def find_own(self) -> dict[Hash, tuple[int, WorkLeaf]]:
        """Return the account's leaves in true epochs, each with the number of its epoch, by receipt hash."""
        return {leaf.receipt_hash: (number, leaf) for number, epoch in self._known.items() for leaf in epoch.own}

    def list_candidates(self) -> list[tuple[Hash, Hash]]:
        """Return the receipt hashes of leaves that may contradict each other."""
        return [pair for epoch in self._known.values() for pair in epoch.candidates]

    def check(
        self, standing: "Sequence[tuple[EpochPosted, int]]", terms: PoolTerms, receipts: Set[Hash]
    ) -> list[CheckedEpoch]:
        """Check the epochs that are not known to be true. Keep their files and the account's proofs.

        `standing` are the epochs that stand, oldest first, each with its price. `receipts` are the account's own.
        """
        known = self._known
        self._known = {}
        checked: list[CheckedEpoch] = []
        before: Mapping[Address, int] | None = {}
        for i, (posted, price) in enumerate(standing):
            trouble = text = ""
            if i == 0 and posted.record.cumulative != posted.record.reward:
                before = None  # Earlier epochs are not kept any more, so their rewards are not known here.
            try:
                epoch = known.get(posted.epoch)
                if epoch is None or epoch.header_hash != posted.record.header_hash:
                    file = self._read_true(posted, before=before, price=price, fees=terms.verdict_fees)
                    epoch = self._summarize(file, posted.record.header_hash, receipts)
                    self._keep_proof(file)
                self._known[posted.epoch] = epoch
                before = epoch.rewards
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
            validators=self._history.list_validators(posted.pool) if header.verdicts else (),
            chain=deployment.chain_id,
            ledger=self._account.contracts.ledger.address,
        )
        return file

    def _summarize(self, file: EpochFile, header_hash: Hash, receipts: Set[Hash]) -> TrueEpoch:
        """Return what is remembered of a file. Raises ProtocolError("bad_epoch") if an earlier epoch has a receipt."""
        packed, earlier = PackedLeaves.build(file.leaves), [epoch.packed for epoch in self._known.values()]
        doubled = min((each for one in earlier for each in packed.find_doubled(one)), default=None)
        if doubled is not None:
            raise ProtocolError("bad_epoch", f"receipt {doubled} is in an earlier epoch, too")
        own = (leaf for leaf in file.leaves if leaf.contributor == self._who or leaf.receipt_hash in receipts)
        return TrueEpoch(
            header_hash,
            file.rewards,
            packed,
            tuple(own),
            tuple(islice(list_candidates(packed, earlier), MAX_CANDIDATES)),
        )

    def _read_file(self, data_hash: Hash) -> bytes:
        """Return an epoch's file. Raises TransientError if nobody gives the one that has this hash."""
        path = self._files / f"{data_hash}.json"
        if path.exists() and sha256(kept := path.read_bytes()) == data_hash:
            return kept
        if self._url is None:
            raise TransientError("no_coordinator", "no coordinator is named that could give it")
        key = build_epoch_key(self._account.pool, data_hash)
        try:
            data = asyncio.run(get_public(self._account, self._url, key, max_bytes=MAX_EPOCH_BYTES))
        except (ProtocolError, OperatorError) as error:
            raise TransientError("no_epoch_file", error.message) from error
        if sha256(data) != data_hash:  # Garbage from a coordinator says nothing about the epoch.
            raise TransientError("no_epoch_file", "the coordinator gave another file")
        self._files.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
        return data

    def _keep_proof(self, file: EpochFile) -> None:
        """Keep the proof of the account's reward, computed from the file."""
        if self._kept.read(file.epoch) is not None:
            return
        ledger = self._account.contracts.ledger.address
        view = build_reward(file, self._who, chain=self._account.deployment.chain_id, ledger=ledger)
        if view is not None:
            self._kept.keep(view)


async def get_public(account: Account, url: str, key: str, *, max_bytes: int) -> bytes:
    """Return a public object of a coordinator, unchecked."""
    async with account.open_client(url) as client:
        return await client.get_public(key, max_bytes=max_bytes)
