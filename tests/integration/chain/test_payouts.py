"""Permits, payees and credits on a real chain, by the code of the commands."""

from pathlib import Path

import pytest

from covey.chain.structs import BondKind
from covey.console.account import Account
from tests.integration.chain.conftest import Chain

pytestmark = pytest.mark.integration


@pytest.fixture
def operator(chain: Chain, tmp_path: Path) -> Account:
    """Account of the operator, with the files that a command reads."""
    chain.deployment.save(tmp_path / "deployment.json")
    key = tmp_path / "operator.key"
    key.write_text("0x" + chain.wallets["operator"].key.hex())
    key.chmod(0o600)
    return Account(tmp_path / "deployment.json", key, chain.open_pool(), rpc_url=chain.client.rpc_url)


def test_stake_and_escrow_take_one_transaction_each(chain: Chain, operator: Account) -> None:
    contracts, address, pool = chain.contracts, operator.wallet.address, operator.pool
    chain.send("operator", contracts.token.approve(contracts.ledger.address, 0))
    before = chain.client.count_transactions(address)
    escrow, bond = contracts.ledger.escrow_of(pool), contracts.stakes.stake_of(pool, BondKind.OPERATOR, address)
    operator.fund(30)
    operator.stake(BondKind.OPERATOR, 20)
    assert chain.client.count_transactions(address) - before == 2
    assert contracts.ledger.escrow_of(pool) == escrow + 30
    assert contracts.stakes.stake_of(pool, BondKind.OPERATOR, address) == bond + 20
    assert contracts.token.allowance(address, contracts.ledger.address) == 0


def test_payee_is_named(chain: Chain) -> None:
    ledger, contributor, pool = chain.contracts.ledger, chain.address("contributor"), chain.open_pool()
    assert ledger.payee_of(pool, contributor) == contributor
    chain.send("contributor", ledger.set_payee(pool, chain.address("arbiter")))
    assert ledger.payee_of(pool, contributor) == chain.address("arbiter")
    assert ledger.credit_of(pool, contributor) == 0
