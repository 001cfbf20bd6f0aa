import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from covey.chain.contracts import Contracts
from covey.chain.deployment import Deployment
from covey.chain.json_rpc import ChainClient, open_node
from covey.devnet import deploy
from covey.devnet.anvil import find_anvil, start_anvil
from covey.errors import OperatorError, TransientError

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def anvil_binary() -> Path:
    try:
        return find_anvil()
    except OperatorError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("anvil_binary")
def test_up__with_a_block_time__deploys_at_once_and_then_mines_by_itself(tmp_path: Path):
    anvil, deployment = deploy.up(tmp_path / "net", block_time=1.0)
    try:
        assert Deployment.load(tmp_path / "net" / "deployment.json") == deployment
        client = ChainClient(anvil.url)
        assert Contracts(client, deployment).pools.count_pools() == 0
        assert abs(client.get_block("latest").timestamp - client.get_block(1).timestamp) <= 30
        before = client.block_number()
        deployer = deploy.derive_wallet("devnet", "deployer")
        # With interval mining the funding waits for the next block.
        deploy.fund(deployment, deployer, {deployer.address: 7}, ether=deploy.ETHER)
        assert client.block_number() > before
        assert Contracts(client, deployment).token.balance_of(deployer.address) == 7
    finally:
        anvil.stop()
    assert anvil.process.poll() is not None
    with pytest.raises(TransientError):
        client.block_number()


@pytest.mark.usefixtures("anvil_binary")
def test_start_anvil__port_in_use__stops_with_advice():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OperatorError) as caught:
            start_anvil(taken.getsockname()[1])
    assert caught.value.code == "address_in_use"


@pytest.mark.usefixtures("anvil_binary")
def test_up__port_or_folder_of_a_running_devnet__is_refused_and_its_deployment_stays(tmp_path: Path):
    anvil, deployment = deploy.up(tmp_path / "net", block_time=None)
    try:
        port = int(anvil.url.rpartition(":")[2])
        with pytest.raises(OperatorError, match=f"devnet_runs: a devnet is already running on 127.0.0.1:{port}"):
            deploy.up(tmp_path / "other", port=port, is_fresh=True)
        for is_fresh in (False, True):
            with pytest.raises(OperatorError, match=f"devnet_runs: .*net in .* is already running.* kill {anvil.pid}"):
                deploy.up(tmp_path / "net", is_fresh=is_fresh)
        assert Deployment.load(tmp_path / "net" / "deployment.json") == deployment
        assert not (tmp_path / "other" / "deployment.json").exists()
    finally:
        anvil.stop()


def describe(deployment: Deployment, transaction: str) -> list[object]:
    """Return what a role reads from a chain: contracts, balances, blocks, logs and transactions."""
    client = ChainClient(deployment.rpc_url)
    holder = deploy.derive_wallet("devnet", "holder").address
    mined = client.find_mined(transaction)
    return [
        deployment.get_contracts(),
        Contracts(client, deployment).token.balance_of(holder),
        client.get_block(3).hash,
        client.get_logs([deployment.token], first=0, last=mined.block_number),
        mined,
    ]


@pytest.mark.usefixtures("anvil_binary")
def test_up__after_a_stop_and_after_a_kill__goes_on_with_the_same_chain(tmp_path: Path):
    anvil, deployment = deploy.up(tmp_path, block_time=None)
    try:
        client = ChainClient(anvil.url)
        holder = deploy.derive_wallet("devnet", "holder").address
        deploy.fund(deployment, deploy.derive_wallet("devnet", "deployer"), {holder: 7})
        block = client.request("eth_getBlockByNumber", "latest", False)
        expected = describe(deployment, block["transactions"][0])
        assert (expected[1], len(expected[3])) == (7, 1)
        anvil.stop()
        anvil, deployment = deploy.up(tmp_path, block_time=None)
        assert describe(deployment, block["transactions"][0]) == expected
        client = ChainClient(anvil.url)
        client.request("evm_mine")
        assert abs(client.get_block("latest").timestamp - time.time()) < 60, "no time passes while it is stopped"
        anvil.process.kill()
        anvil.process.wait()
        anvil, deployment = deploy.up(tmp_path, block_time=None)
        assert describe(deployment, block["transactions"][0]) == expected
    finally:
        anvil.stop()


@pytest.mark.usefixtures("anvil_binary")
def test_up__killed_before_anvil_has_written_its_state__goes_on_with_the_same_contracts(tmp_path: Path):
    anvil, first = deploy.up(tmp_path)
    anvil.process.kill()
    anvil.process.wait()
    anvil, second = deploy.up(tmp_path)
    try:
        assert second.get_contracts() == first.get_contracts()
        assert Contracts(ChainClient(anvil.url), second).token.decimals() == 18
    finally:
        anvil.stop()


@pytest.mark.usefixtures("anvil_binary")
def test_open_node__two_devnets_of_one_second__are_told_apart_and_each_survives_a_restart(tmp_path: Path):
    pairs = [deploy.up(tmp_path / name, block_time=None) for name in ("a", "b")]
    anvils, (first, second) = [anvil for anvil, _ in pairs], [deployment for _, deployment in pairs]
    try:
        assert first.get_contracts() == second.get_contracts(), "only the hash tells them apart"
        assert open_node(first).rpc_url == first.rpc_url
        with pytest.raises(OperatorError, match=r"wrong_chain: .* another chain with the id 31337"):
            open_node(first, second.rpc_url)
        anvils[0].stop()
        first.save(tmp_path / "b" / "deployment.json")
        anvils[1].stop()
        with pytest.raises(OperatorError, match=r"devnet_differs: .* belongs to another chain"):
            deploy.up(tmp_path / "b", block_time=None)
        replace(first, start_hash=None).save(tmp_path / "a" / "deployment.json")  # as an older version wrote it
        anvils[0], again = deploy.up(tmp_path / "a", block_time=None)
        assert (again.start_hash, again.start_block) == (first.start_hash, first.start_block)
    finally:
        for anvil in anvils:
            anvil.stop()


@pytest.mark.usefixtures("anvil_binary")
def test_up__fresh__begins_another_chain_and_keeps_the_files_of_the_first(tmp_path: Path):
    first = deploy.up(tmp_path, block_time=None)
    first[0].stop()
    second = deploy.up(tmp_path, block_time=None, seed="another", is_fresh=True)
    try:
        assert second[1].get_contracts() != first[1].get_contracts()
        assert Deployment.load(tmp_path / "deployment.json") == second[1]
        assert Deployment.load(tmp_path / "deployment.json.old") == first[1]
        assert (tmp_path / "state.json.old").exists()
    finally:
        second[0].stop()
    first[1].save(tmp_path / "deployment.json")
    with pytest.raises(OperatorError, match=r"devnet_differs: .*lists contracts that do not exist on the chain"):
        deploy.up(tmp_path, block_time=None)


@pytest.mark.usefixtures("anvil_binary")
def test_start_anvil__state_file__survives_a_restart(tmp_path: Path):
    state = tmp_path / "state.json"
    wallet = deploy.derive_wallet("state", "a")
    for expected in (0, 5):
        anvil = start_anvil(block_time=None, state=state)
        try:
            client = ChainClient(anvil.url)
            assert client.get_balance(wallet.address) == expected
            client.request("anvil_setBalance", wallet.address, hex(5))
            client.request("evm_mine")
        finally:
            anvil.stop()


def test_derive_key__same_seed_and_name__is_the_same_and_else_another():
    keys = {deploy.derive_key(seed, name) for seed in ("a", "b") for name in ("x", "y")}
    assert len(keys) == 4
    assert deploy.derive_key("a", "x") in keys
