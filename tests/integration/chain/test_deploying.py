import pytest

from covey.chain import abi_codec
from covey.chain.deploying import deploy, send_and_wait
from covey.errors import ProtocolError

pytestmark = pytest.mark.integration


def test_deploy__stake_manager__names_the_court_and_ledger_that_followed(chain):
    def read(function: str) -> object:
        data = chain.client.call(chain.deployment.stake_manager, abi_codec.encode_call("StakeManager", function, ()))
        return abi_codec.decode_result("StakeManager", function, data)[0]

    assert read("LEDGER") == chain.deployment.epoch_ledger
    assert read("COURT") == chain.deployment.slashing_court


def test_deploy__deployer_sends_something_else__is_refused(chain):
    deployer = chain.wallets["deployer"]

    def disturb(line: str) -> None:
        if line == "deploying EpochLedger":
            send_and_wait(chain.client, deployer, to=deployer.address, data=b"", chain_id=chain.deployment.chain_id)

    with pytest.raises(ProtocolError, match="WrongDeployment"):
        deploy(chain.client.rpc_url, deployer, token=chain.deployment.token, say=disturb)
