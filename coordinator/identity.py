"""The network that a database belongs to, recorded at the first start and compared at every later one.

Rows of another chain, other contracts or another pool would be taken for this one's.
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
    """What tells this network from others: pool, chain id, hash of the first block, places and code of the contracts.

    What the node does not show is left out: the first block where old ones are pruned, code where it lags.
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
    """Hash of block 0; None, and a line in the log, where the node has pruned it."""
    try:
        block = client.find_block(0)
    except TransientError as error:
        if error.code != "chain_refused":
            raise
        block = None
    if block is None:
        get_logger().warning("the node does not serve block 0, by which a reset chain would be noticed")
        return None
    return block.hash


def require_same(database: Database, identity: Mapping[str, str]) -> None:
    """Return unless the database was made for another network; raise OperatorError("wrong_home")."""
    with database.read() as repository:
        known = repository.get_identity()
    wrong = [name for name, value in identity.items() if known.get(name, value) != value]
    if wrong:
        told = "; ".join(f"{name} was {known[name]} and is {identity[name]}" for name in wrong)
        raise OperatorError(
            "wrong_home",
            f"the coordinator's database belongs to another network: {told}",
            fix="Name another home for this network, with a database, a store and a broker of its own, or the node,"
            " deployment and pool that this home was made for",
        )


def record(database: Database, identity: Mapping[str, str]) -> None:
    """Note what is not recorded yet."""
    with database.write() as repository:
        repository.add_identity(identity)
