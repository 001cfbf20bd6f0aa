"""Contracts that a coordinator reports, and their comparison with a deployment file."""

from covey.chain.deployment import CONTRACTS, Deployment
from covey.errors import OperatorError, ProtocolError
from covey.protocol.api.public import PoolView
from covey.protocol.ids import is_address


def build_deployment(view: PoolView, rpc_url: str | None) -> Deployment:
    """Return the contracts that a coordinator specifies. Nobody has confirmed them yet."""
    for name, address in {**{name: view.contracts.get(name, "") for name in CONTRACTS}, "token": view.token}.items():
        if not is_address(address):
            raise ProtocolError(
                "bad_answer", f"the address of {name} that the coordinator reports is missing or not checksummed"
            )
    if not 0 < view.pool < 1 << 64:
        raise ProtocolError("bad_answer", f"the coordinator reports the invalid pool number {view.pool}")
    return Deployment(
        chain_id=view.chain_id,
        rpc_url=rpc_url,
        start_block=view.start_block,
        start_hash=view.start_hash,
        token=view.token,
        **{field: view.contracts[name] for name, field in CONTRACTS.items()},
    )


def require_same_contracts(view: PoolView, deployment: Deployment) -> None:
    """Raise OperatorError("other_contracts") unless the coordinator uses the deployment's chain and contracts.

    The hashes of the chains' first blocks are compared if both are known. Of two devnets, only they differ.
    """
    theirs, ours = (_describe(each) for each in (build_deployment(view, None), deployment))
    wrong = [
        f"{name} is {theirs[name]} at the coordinator, but {ours[name]} in the deployment file"
        for name in theirs
        if theirs[name] != ours[name] and None not in (theirs[name], ours[name])
    ]
    if wrong:
        raise OperatorError(
            "other_contracts",
            f"the coordinator uses different contracts: {'; '.join(wrong)}",
            fix="Use the URL of your pool's coordinator, or ask the pool's operator for the correct deployment.json",
        )


def _describe(deployment: Deployment) -> dict[str, int | str | None]:
    return {"chain_id": deployment.chain_id, "start_hash": deployment.start_hash, **deployment.get_contracts()}
