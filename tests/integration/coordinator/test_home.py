"""A coordinator's home belongs to one chain, one set of contracts and one pool. It serves no other."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator import app
from coordinator.config import CoordinatorConfig
from covey.chain.json_rpc import ChainClient
from covey.devnet.anvil import start_anvil
from covey.errors import OperatorError
from tests.fakes.network import CoordinatorHarness, create_pool

pytestmark = pytest.mark.integration


@pytest.fixture
def config(harness: CoordinatorHarness, tmp_path: Path) -> CoordinatorConfig:
    """Settings of a home that has been started once."""
    made = harness.ctx.config.model_copy(update={"home": tmp_path / "home"})
    app.build(made).database.close()
    return made


def refuse(config: CoordinatorConfig, **changes: Any) -> str:
    with pytest.raises(OperatorError, match="wrong_home") as caught:
        app.build(config.model_copy(update=changes))
    return str(caught.value)


def test_build__same_network_again__starts(config: CoordinatorConfig):
    app.build(config).database.close()


def test_build__home_of_another_pool__is_refused(harness: CoordinatorHarness, config: CoordinatorConfig):
    other = create_pool(harness.chain, harness.ctx.params)
    message = refuse(config, pool=other)
    assert f"pool was {config.pool} and is {other}" in message
    assert "genesis" not in message
    assert "Set another home" in message
    app.build(config).database.close()


def test_build__chain_that_was_reset__is_refused(
    harness: CoordinatorHarness, config: CoordinatorConfig, tmp_path: Path
):
    """It is refused before the contracts are read.

    The chain does not have them, so the read would be retried for ever. The home itself tells the chains apart if the
    deployment file does not.
    """
    file = tmp_path / "old.json"
    replace(harness.chain.deployment, start_hash=None).save(file)
    while time.time() < harness.chain.client.get_block(0).timestamp + 1:  # Anvil's first block differs by its second
        time.sleep(0.05)
    anvil = start_anvil()
    try:
        genesis = [ChainClient(url).get_block(0).hash for url in (harness.chain.client.rpc_url, anvil.url)]
        message = refuse(config, rpc_url=anvil.url, deployment=file)
        with pytest.raises(OperatorError, match="wrong_chain"):
            app.build(config.model_copy(update={"rpc_url": anvil.url}))
    finally:
        anvil.stop()
    assert f"genesis was {genesis[0]} and is {genesis[1]}" in message
    assert "EpochLedger was" not in message, "a node that lags shows no code either"


def test_build__contracts_that_were_deployed_again__are_refused(
    harness: CoordinatorHarness, config: CoordinatorConfig, tmp_path: Path
):
    deployment = harness.chain.deployment
    file = tmp_path / "other.json"
    swapped = {"policy_registry": deployment.node_registry, "node_registry": deployment.policy_registry}
    type(deployment)(**{name: getattr(deployment, name) for name in deployment.__slots__} | swapped).save(file)
    message = refuse(config, deployment=file)
    assert f"NodeRegistry was {deployment.node_registry} with code" in message
    assert "PoolRegistry was" not in message


def test_build__node_without_the_first_block__compares_the_rest(
    harness: CoordinatorHarness, config: CoordinatorConfig, monkeypatch: pytest.MonkeyPatch
):
    """Nodes that do not keep old blocks return null or an error. In that case the block is not recorded."""
    real = ChainClient.ask_node

    def ask_node(self: ChainClient, node: Any, method: str, *params: Any) -> Any:
        return None if (method, params[:1]) == ("eth_getBlockByNumber", ("0x0",)) else real(self, node, method, *params)

    monkeypatch.setattr(ChainClient, "ask_node", ask_node)
    app.build(config).database.close()
    other = create_pool(harness.chain, harness.ctx.params)
    assert f"pool was {config.pool} and is {other}" in refuse(config, pool=other)
