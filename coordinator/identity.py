"""The network to which a database belongs. It is recorded at the first start and compared at every later start.

Otherwise rows of another chain, deployment or pool could be mistaken for those of this one.
"""

from collections.abc import Mapping

from eth_utils.crypto import keccak

from coordinator.db.database import Database
from covey.chain.deployment import Deployment
from covey.chain.json_rpc import ChainClient
from covey.errors import OperatorError, TransientError
from covey.protocol.ids import Hash, PoolId, hash_from_bytes
from covey.runtime.log import get_logger


def read_identity(client: ChainClient, deployment: Deployment, pool: PoolId) -> dict[str, str]:
    """Return the values that identify a network: pool, chain id, hash of block 0, addresses and code of the contracts.

    Values that the node cannot show are left out: block 0 if the node has pruned it, and code if the node lags.
    """
    identity = {"pool": str(pool), "chain_id": str(deployment.chain_id)}
    genesis = _find_genesis(client)
    if genesis is not None:
        identity["genesis"] = genesis
    for name, address in deployment.get_contracts().items():
        code = client.get_code(address)
        if code:
            identity[name] = f"{address} with code {hash_from_bytes(keccak(code))}"
    return identity


def _find_genesis(client: ChainClient) -> Hash | None:
    """Return the hash of block 0. If the node has pruned it, log that and return None."""
    try:
        block = client.find_block(0)
    except TransientError as error:
        if error.code != "chain_refused":
            raise
        block = None
    if block is None:
        get_logger().warning("the node does not serve block 0, so a reset of the chain would not be noticed")
        return None
    return block.hash


def require_same(database: Database, identity: Mapping[str, str]) -> None:
    """Raise OperatorError("wrong_home") if the database belongs to another network."""
    with database.read() as repository:
        known = repository.get_identity()
    wrong = [name for name, value in identity.items() if known.get(name, value) != value]
    if wrong:
        told = "; ".join(f"{name} was {known[name]} and is {identity[name]}" for name in wrong)
        raise OperatorError(
            "wrong_home",
            f"the coordinator's database belongs to another network: {told}",
            fix="Set another home, with its own database, store and broker, or set the node, deployment and pool to"
            " which this home belongs",
        )


def record(database: Database, identity: Mapping[str, str]) -> None:
    """Record the values that are not recorded yet."""
    with database.write() as repository:
        repository.add_identity(identity)
