import os
import socket
from pathlib import Path

import pytest
import rlp

from covey import devnet
from covey.chain.client import ChainClient
from covey.chain.contracts import Contracts
from covey.chain.deployment import Deployment
from covey.errors import OperatorError, TransientError

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def anvil_binary() -> Path:
    try:
        return devnet.find_anvil()
    except OperatorError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("anvil_binary")
def test_up__with_a_block_time__deploys_at_once_and_then_mines_by_itself(tmp_path: Path):
    anvil, deployment = devnet.up(tmp_path / "net", block_time=1.0)
    try:
        assert Deployment.load(tmp_path / "net" / "deployment.json") == deployment
        client = ChainClient(anvil.url)
        assert Contracts(client, deployment).pools.count_pools() == 0
        assert abs(client.get_block("latest").timestamp - client.get_block(1).timestamp) <= 30
        before = client.block_number()
        deployer = devnet.derive_wallet("devnet", "deployer")
        # With interval mining the funding waits for a block of its own.
        devnet.fund(deployment, deployer, {deployer.address: 7}, ether=devnet.ETHER)
        assert client.block_number() > before
        assert Contracts(client, deployment).token.balance_of(deployer.address) == 7
    finally:
        anvil.stop()
    assert anvil.process.poll() is not None
    with pytest.raises(TransientError):
        client.block_number()


def test_deploy__stake_manager__names_the_court_and_ledger_that_followed(chain):
    def read(function: str) -> object:
        data = chain.client.call(chain.deployment.stake_manager, devnet.codec.encode_call("StakeManager", function, ()))
        return devnet.codec.decode_result("StakeManager", function, data)[0]

    assert read("LEDGER") == chain.deployment.epoch_ledger
    assert read("COURT") == chain.deployment.slashing_court


@pytest.mark.parametrize("nonce", [0, 1, 0x7F, 0x80, 0x100, 0x12345])
def test_predict_address__any_nonce__is_what_rlp_gives(nonce: int):
    creator = devnet.derive_wallet("predict", "a").address
    expected = devnet.keccak(rlp.encode([bytes.fromhex(creator[2:]), nonce]))[12:]
    assert devnet.predict_address(creator, nonce).lower() == "0x" + expected.hex()


@pytest.mark.usefixtures("anvil_binary")
def test_start_anvil__port_in_use__stops_with_advice():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OperatorError) as caught:
            devnet.start_anvil(taken.getsockname()[1])
    assert caught.value.code == "anvil_ended"


@pytest.mark.usefixtures("anvil_binary")
def test_start_anvil__state_file__survives_a_restart(tmp_path: Path):
    state = tmp_path / "state.json"
    wallet = devnet.derive_wallet("state", "a")
    for expected in (0, 5):
        anvil = devnet.start_anvil(block_time=None, state=state)
        try:
            client = ChainClient(anvil.url)
            assert client.get_balance(wallet.address) == expected
            client.request("anvil_setBalance", wallet.address, hex(5))
            client.request("evm_mine")
        finally:
            anvil.stop()


def test_find_anvil__configured_but_missing__stops_with_advice(tmp_path: Path):
    with pytest.raises(OperatorError) as caught:
        devnet.find_anvil(configured=tmp_path / "anvil")
    assert "COVEY_ANVIL" in caught.value.fix
    program = tmp_path / "anvil"
    program.write_text("#!/bin/sh\n")
    os.chmod(program, 0o700)
    assert devnet.find_anvil(configured=program) == program


def test_derive_key__same_seed_and_name__is_the_same_and_else_another():
    keys = {devnet.derive_key(seed, name) for seed in ("a", "b") for name in ("x", "y")}
    assert len(keys) == 4
    assert devnet.derive_key("a", "x") in keys
