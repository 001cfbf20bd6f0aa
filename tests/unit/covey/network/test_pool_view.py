from dataclasses import replace

import pytest

from covey.chain.deployment import CONTRACTS
from covey.errors import OperatorError, ProtocolError
from covey.network.pool_view import build_deployment, require_same_contracts
from covey.protocol.api.public import PoolView
from tests.fakes.pool import make_address, make_deployment

pytestmark = pytest.mark.unit
HASH, OTHER = "0x" + "ab" * 32, "0x" + "cd" * 32
DEPLOYMENT = make_deployment(rpc_url="http://node:8545", start_block=3, start_hash=HASH)


def make_view(**changes) -> PoolView:
    values = {
        "pool": 1,
        "params": "{}",
        "params_hash": HASH,
        "terms": {},
        "requirements": {
            "engine": "any", "compute_dtype": "float32", "hardware": "any", "execution_contracts": {},
            "max_tokens": 520,
        },
        "operator": make_address("operator"),
        "signer": make_address("signer"),
        "chain_id": 31337,
        "contracts": DEPLOYMENT.get_contracts(),
        "token": DEPLOYMENT.token,
        "start_block": 3,
        "start_hash": HASH,
        "relays": (),
    }  # fmt: skip
    return PoolView(**(values | changes))


def test_build_deployment__view__is_what_the_operator_deployed():
    assert build_deployment(make_view(), "http://node:8545") == DEPLOYMENT
    with pytest.raises(ProtocolError, match="bad_answer: the address of PoolRegistry that the coordinator reports"):
        build_deployment(make_view(contracts={}), "http://node:8545")


@pytest.mark.parametrize(("name", "field"), [("chain_id", "chain_id"), *CONTRACTS.items()])
def test_require_same_contracts__coordinator_names_another__is_refused(name: str, field: str):
    require_same_contracts(make_view(), DEPLOYMENT)
    other = 5 if field == "chain_id" else make_address("thief")
    with pytest.raises(OperatorError) as caught:
        require_same_contracts(make_view(), replace(DEPLOYMENT, **{field: other}))
    assert caught.value.code == "other_contracts"
    assert (
        f"{name} is {getattr(DEPLOYMENT, field)} at the coordinator, but {other} in the deployment"
        in caught.value.message
    )


def test_require_same_contracts__devnet_with_equal_addresses__is_told_by_its_first_block():
    with pytest.raises(OperatorError, match=f"start_hash is {OTHER} at the coordinator, but {HASH} in the deployment"):
        require_same_contracts(make_view(start_hash=OTHER), DEPLOYMENT)


def test_require_same_contracts__hash_unknown_on_one_side__is_not_compared():
    require_same_contracts(make_view(start_hash=None), DEPLOYMENT)
    require_same_contracts(make_view(), replace(DEPLOYMENT, start_hash=None))
