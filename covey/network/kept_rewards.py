"""A contributor's proofs of what it has earned, kept on its own machine.

A proof that is kept can be claimed with nothing but a node of the chain, also when the coordinator is gone. Rewards are
cumulative, so the proof of the newest final epoch claims everything; earlier ones matter if that epoch is disabled.
"""

from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path

from pydantic import ValidationError

from covey.chain.contracts import Contracts
from covey.chain.history import History
from covey.chain.structs import EpochRecord
from covey.errors import ProtocolError
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol.api.public import RewardView
from covey.protocol.epoch_file import EpochFile
from covey.protocol.ids import Address, PoolId
from covey.protocol.merkle import compute_reward_leaf, is_in_tree
from covey.protocol.promises import KEPT_EPOCHS
from covey.runtime.files import write_atomically

REWARDS_FOLDER = "rewards"
"""Name of the folder in a worker's home."""
MAX_FILE_BYTES = 1 << 14


class KeptRewards:
    """A folder with one file for each epoch: a contributor's total reward by then, and its proof."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done = set(self.list_epochs())
        """Epochs whose proofs are kept, or that are known to have none."""
        self._tries: Counter[int] = Counter()
        """Number of times that an epoch was postponed."""

    def list_missing(self, epochs: Iterable[int]) -> list[int]:
        """Return the epochs that are not done: those that were postponed least first, and of these the newest."""
        return sorted(set(epochs) - self._done, key=lambda epoch: (self._tries[epoch], -epoch))

    def mark_done(self, epoch: int) -> None:
        """Record that an epoch needs no further look: its proof is kept, or it has none."""
        self._done.add(epoch)

    def postpone(self, epoch: int) -> None:
        """Record that an epoch could not be looked at, so that others come first."""
        self._tries[epoch] += 1

    def list_epochs(self) -> list[int]:
        """Return the numbers of the kept epochs, newest first."""
        names = [path.stem for path in self._folder.glob("*.json")]
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def read(self, epoch: int) -> RewardView | None:
        """Return what is kept of an epoch. None if there is nothing, or if the file is damaged."""
        try:
            with (self._folder / f"{epoch}.json").open("rb") as file:
                return RewardView.model_validate_json(file.read(MAX_FILE_BYTES))
        except (OSError, ValidationError):
            return None

    def keep(self, view: RewardView) -> None:
        """Keep the proof of an epoch, and delete those of epochs that the ledger no longer keeps."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / f"{view.epoch}.json", view.model_dump_json().encode())
        for epoch in self.list_epochs():
            if epoch <= view.epoch - KEPT_EPOCHS:
                (self._folder / f"{epoch}.json").unlink(missing_ok=True)


def require_reward(
    view: RewardView, record: EpochRecord, contracts: Contracts, *, pool: PoolId, contributor: Address
) -> RewardView:
    """Return a view whose proof matches the root on chain.

    Raises ProtocolError("bad_reward") if it does not, or if it is about another contributor or epoch.
    """
    leaf = compute_reward_leaf(
        chain=contracts.deployment.chain_id,
        ledger=contracts.ledger.address,
        pool=pool,
        contributor=contributor,
        cumulative=view.cumulative,
    )
    is_about = (view.contributor, view.epoch) == (contributor, record.epoch)
    if not is_about or not is_in_tree(record.reward_root, leaf, view.proof):
        raise ProtocolError(
            "bad_reward",
            f"the reward that is reported for {contributor} is not part of epoch {record.epoch} on chain",
        )
    return view


def build_reward(file: EpochFile, contributor: Address, *, chain: int, ledger: Address) -> RewardView | None:
    """Return what a contributor had earned by the end of an epoch, with its proof. None if it had earned nothing."""
    amount = file.rewards.get(contributor)
    if amount is None:
        return None
    leaf = compute_reward_leaf(chain=chain, ledger=ledger, pool=file.pool, contributor=contributor, cumulative=amount)
    proof = file.build_reward_tree(chain=chain, ledger=ledger).get_proof(leaf)
    return RewardView(epoch=file.epoch, contributor=contributor, cumulative=amount, proof=tuple(proof))


async def fetch_reward(client: CoordinatorClient, contributor: Address, epoch: int) -> RewardView | None:
    """Return what a contributor had earned by the end of an epoch, unchecked. None if it had earned nothing."""
    try:
        return await client.get_reward(contributor, epoch)
    except ProtocolError as error:
        if error.code == "no_reward":
            return None
        raise


def find_kept(
    kept: list[KeptRewards], history: History, *, pool: PoolId, contributor: Address, now: int
) -> tuple[EpochRecord, RewardView] | None:
    """Return the newest kept reward whose epoch stands and is final at `now`, with the record of the epoch.

    `now` is the Unix time of the chain's clock in seconds.
    """
    ledger = history.contracts.ledger
    found = [(epoch, store) for store in kept for epoch in store.list_epochs()]
    for epoch, store in sorted(found, key=itemgetter(0), reverse=True):
        posted, view = history.find_epoch(pool, epoch), store.read(epoch)
        if posted is None or view is None or posted.record.final_at > now:
            continue
        if not ledger.is_posted(pool, posted.record):
            continue
        try:
            view = require_reward(view, posted.record, history.contracts, pool=pool, contributor=contributor)
        except ProtocolError:
            continue  # It is another account's, or was kept before a reorganization.
        return posted.record, view
    return None
