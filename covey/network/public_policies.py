"""A pool's policies for a party without a key: which ones there are, and their files from the pool's relays.

Every tensor and file is compared with the record hash, as a worker compares them. The hash is the one that the
coordinator reports. With the URL of a node it must also be the one on chain.
"""

from contextlib import closing
from pathlib import Path

from covey.chain.contracts import Contracts
from covey.chain.json_rpc import open_node
from covey.errors import OperatorError, ProtocolError
from covey.network.pool_view import build_deployment
from covey.protocol.api.public import PoolView, StatusView
from covey.protocol.eip712 import Domain
from covey.protocol.ids import Address, Hash, Step
from covey.shardcast.downloader import Downloader
from covey.shardcast.policy_fetch import PolicyClient
from covey.shardcast.policy_source import PolicySource
from covey.shardcast.policy_store import PolicyStore


def list_policies(status: StatusView) -> dict[Step, Hash]:
    """Return the record hashes of the policies on chain by step, oldest first, as the coordinator reports them."""
    return {view.step: view.record_hash for view in status.steps if view.record_hash is not None}


def choose_policy(status: StatusView, step: int | None) -> tuple[Step, Hash]:
    """Return a step and its record hash. None selects the newest step. Raises OperatorError("no_policy")."""
    policies = list_policies(status)
    chosen = max(policies, default=Step(0)) if step is None else Step(step)
    if chosen not in policies:
        found = f"the steps {min(policies)} to {max(policies)}" if policies else "none yet"
        raise OperatorError(
            "no_policy",
            f"policy {chosen} of pool {status.pool} is not among the published ones, which are {found}",
            fix="Choose one of them, or wait until the trainer has published it",
        )
    return chosen, policies[chosen]


def require_on_chain(view: PoolView, step: Step, record_hash: Hash, rpc_url: str) -> None:
    """Compare a record hash with the one on chain. `rpc_url` is the URL of a node.

    Raises ProtocolError("bad_answer") if they differ, and the errors of `open_node`.
    """
    deployment = build_deployment(view, rpc_url)
    on_chain = Contracts(open_node(deployment), deployment).policies.policy_of(view.pool, step)
    if on_chain != record_hash:
        raise ProtocolError(
            "bad_answer",
            f"the coordinator reports the record {record_hash} of policy {step}, but {on_chain} is on chain",
        )


def fetch_policy(view: PoolView, store: PolicyStore, step: Step, record_hash: Hash) -> Path:
    """Return the folder of a policy in `store`, which is downloaded if it is not there.

    Raises ProtocolError("no_relays") if the coordinator lists no valid relay, and the errors of `PolicyClient.fetch`.
    """
    deployment = build_deployment(view, None)
    domain = Domain(chain_id=view.chain_id, contract=deployment.policy_registry)
    with closing(Downloader(view.relays)) as downloader:
        source = PolicySource(downloader, pool=view.pool, domain=domain, trainer=Address(str(view.terms["trainer"])))
        folder = PolicyClient(source, store).fetch(step, record_hash)
    store.release(folder)
    return folder
