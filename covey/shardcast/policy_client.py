"""Obtains a pool's policies from relays that nobody trusts, over the route with the fewest bytes.

The walk: find a route to the record, fetch its manifests, make room, download the pieces, build the weights, compare
all digests with the record, and only then give the folder its name (`PolicyFetch`). A crash loses at most the pieces
under way.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from covey.protocol.ids import Hash, Step
from covey.runtime.log import get_logger
from covey.runtime.urls import hide_secrets
from covey.shardcast.policy_fetch import FetchProgress, PolicyFetch
from covey.shardcast.policy_source import PolicySource
from covey.shardcast.policy_store import PolicyStore


class PolicyClient:
    """The policies of one pool. One thread at a time may fetch."""

    def __init__(self, source: PolicySource, store: PolicyStore) -> None:
        self.source, self.store = source, store

    def fetch(
        self,
        step: Step,
        record_hash: Hash,
        *,
        stop: threading.Event | None = None,
        is_obsolete: Callable[[int], bool] = lambda _: False,
        progress: FetchProgress | None = None,
    ) -> Path:
        """Return the folder of a policy, with all digests checked. Download what is missing, and hold the folder.

        `is_obsolete` gets the number of missing bytes now and then, and returns whether a newer policy is a better use
        of them. The caller releases the folder in the store when it is not needed any more.

        Raises TransientError "not_at_relays" if no relay knows a route to the policy, "no_relay" if none delivers,
        "obsolete" if `is_obsolete` says so, "disk_full", "store_busy" or "stopped".
        """
        folder, started = self.store.get_folder(step, record_hash), time.monotonic()
        stop, progress = stop or threading.Event(), progress or FetchProgress()
        while not self.store.hold_if_sound(folder):
            with self.store.lock(lambda: not folder.exists(), stop=stop) as is_ours:
                if is_ours:
                    fetch = PolicyFetch(self.source, self.store, stop=stop, is_obsolete=is_obsolete, progress=progress)
                    fetch.run(step, record_hash)
                    self._log(step, progress, seconds=time.monotonic() - started)
        return folder

    def _log(self, step: Step, progress: FetchProgress, *, seconds: float) -> None:
        get_logger().info(
            "policy fetched",
            step=step,
            bytes=progress.size,
            ways="+".join(progress.ways),
            seconds=round(seconds, 3),
            delivered={hide_secrets(source.url): source.delivered for source in self.source.downloader.sources},
        )
