"""Python with Solidity on a real chain: pools, nodes, stake and policies."""

import pytest

from covey.chain import events, json_rpc
from covey.chain.contracts import Contracts
from covey.chain.json_rpc import ChainClient
from covey.chain.structs import (
    BondKind,
    PoolState,
    Settlement,
)
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.eip712 import sign
from covey.protocol.messages import NodeRegistration
from tests.fakes.contracts import read_contract
from tests.integration.chain.making import (
    read_events,
    without_place,
    word,
)

pytestmark = pytest.mark.integration


def test_pool__created_funded_started_ended__is_read_back(chain):
    pool = chain.open_pool()
    pools = chain.contracts.pools
    assert pools.state_of(pool) is PoolState.ACTIVE
    assert pools.operator_of(pool) == chain.address("operator")
    assert pools.get_validators(pool) == [chain.address(f"validator-{i}") for i in range(3)]
    ledger = chain.contracts.ledger
    assert (ledger.escrow_of(pool), ledger.owed_of(pool)) == (1_000_000, 0)
    assert ledger.get_settlement(pool) == Settlement(posted=0, funded=1_000_000, epochs=0, last_posted_at=0)
    assert pools.is_open(pool)
    terms = pools.get_terms(pool)
    assert (terms.trainer, terms.reward_per_million, terms.quorum) == (chain.address("trainer"), 3_000_000, 2)
    assert (terms.slash_amount, terms.challenge_window, terms.unbond_window) == (60, 10, 20)
    assert (terms.validator_bond, terms.signer_penalty, terms.light_slash_bps) == (20, 15, 10_000)
    chain.send("operator", pools.replace_validator(pool, chain.address("validator-1"), chain.address("node")))
    assert not pools.is_validator(pool, chain.address("validator-1"))
    assert not pools.is_validator(pool, chain.address("node"))
    chain.advance(40)
    assert pools.is_validator(pool, chain.address("node"))
    chain.send("operator", pools.end_pool(pool))
    assert pools.closes_at(pool) == chain.now() + 20 + 4 * 20
    chain.advance(100)
    chain.send("operator", ledger.refund_pool(pool))
    assert ledger.escrow_of(pool) == 0
    assert [type(event).__name__ for event in read_events(chain)] == [
        "PoolCreated",
        "PoolFunded",
        "Staked",
        "Staked",
        "Staked",
        "PoolStarted",
        "ValidatorReplaced",
        "PoolEnded",
        "PoolRefunded",
    ]


def test_reads__pinned_to_a_block__show_that_block(chain):
    before = chain.client.block_number()
    pool = chain.open_pool()
    assert chain.contracts.at(before).pools.count_pools() == pool - 1
    assert chain.contracts.at("latest").pools.count_pools() == pool


def test_reads__no_contract_at_the_address__are_transient(chain):
    with pytest.raises(TransientError) as caught:
        chain.contracts.at(0).pools.count_pools()
    assert caught.value.code == "no_contract"


def test_node__registered_with_both_signatures__belongs_to_the_contributor(chain):
    pool = chain.open_pool()
    nodes = chain.contracts.nodes
    assert nodes.contributor_of(pool, chain.address("node")) is None
    chain.join(pool)
    assert nodes.contributor_of(pool, chain.address("node")) == chain.address("contributor")
    assert nodes.nonce_of(chain.address("node")) == 1
    chain.send("contributor", nodes.remove_node(pool, chain.address("node")))
    assert nodes.contributor_of(pool, chain.address("node")) is None
    assert read_contract(nodes, "isLiable", pool, chain.address("node"), chain.address("contributor"))


def test_stake__unbonded_and_matured__is_withdrawn(chain):
    pool = chain.open_pool()
    chain.join(pool)
    stakes, contributor = chain.contracts.stakes, chain.address("contributor")
    assert stakes.stake_of(pool, BondKind.CONTRIBUTOR, contributor) == 100
    chain.send("contributor", stakes.unbond(pool, BondKind.CONTRIBUTOR, 40))
    (leaving,) = stakes.unbondings_of(pool, BondKind.CONTRIBUTOR, contributor)
    assert (leaving.amount, leaving.available_at) == (40, chain.now() + 20)
    with pytest.raises(ProtocolError, match="NothingToWithdraw"):
        chain.send("contributor", stakes.withdraw(pool, BondKind.CONTRIBUTOR))
    chain.advance(20)
    before = chain.contracts.token.balance_of(contributor)
    chain.send("contributor", stakes.withdraw(pool, BondKind.CONTRIBUTOR))
    assert chain.contracts.token.balance_of(contributor) == before + 40


def test_policy__published__is_read_back_and_followed(chain):
    pool = chain.open_pool()
    policies = chain.contracts.policies
    chain.send("trainer", policies.publish(pool, 0, word(11)))
    with pytest.raises(ProtocolError, match=r"WrongStep\(1, 5\)"):
        chain.send("trainer", policies.publish(pool, 5, word(12)))
    with pytest.raises(ProtocolError, match="NotTrainer"):
        chain.send("operator", policies.publish(pool, 1, word(12)))
    assert (policies.steps_of(pool), policies.policy_of(pool, 0)) == (1, word(11))
    event = read_events(chain)[-1]
    assert without_place(event) == (events.PolicyPublished, pool, 0, word(11))
    assert event.block_number == chain.client.block_number()


def test_node__invited_and_rotated__belongs_to_the_contributor(chain):
    pool = chain.open_pool()
    chain.join(pool)
    nodes, contributor = chain.contracts.nodes, chain.address("contributor")
    chain.send("operator", nodes.invite(pool, [contributor]))
    assert nodes.is_invited(pool, contributor)
    chain.send("operator", nodes.withdraw_invitation(pool, contributor))
    assert not nodes.is_invited(pool, contributor)
    consent = NodeRegistration(
        pool=pool, contributor=contributor, node=chain.address("trainer"), nonce=0, deadline=chain.now() + 60
    )
    signature = sign(consent, chain.domain("node_registry"), chain.wallets["trainer"])
    rotation = nodes.rotate_node(
        pool,
        previous=chain.address("node"),
        node=consent.node,
        deadline=consent.deadline,
        node_signature=signature,
    )
    chain.send("contributor", rotation)
    assert nodes.contributor_of(pool, chain.address("node")) is None
    assert nodes.contributor_of(pool, consent.node) == contributor


def test_pause__by_the_admin__stops_new_work_only(chain):
    pool = chain.open_pool()
    pools = chain.contracts.pools
    chain.send("deployer", pools.pause())
    assert not pools.is_open(pool)
    with pytest.raises(ProtocolError, match="PoolNotActive"):
        chain.send("trainer", chain.contracts.policies.publish(pool, 0, word(1)))
    chain.send("deployer", pools.unpause())
    assert pools.is_open(pool)


def test_open_node__contracts_of_this_release__are_old_to_the_next(chain, monkeypatch):
    assert json_rpc.open_node(chain.deployment).rpc_url == chain.client.rpc_url
    monkeypatch.setattr(json_rpc, "DOMAIN_VERSION", "4")
    with pytest.raises(
        OperatorError, match="the contracts have version '3', but this release supports version '4'"
    ) as caught:
        json_rpc.open_node(chain.deployment)
    assert caught.value.code == "old_deployment"


def test_contracts__of_a_node_that_is_gone__are_transient(chain):
    gone = Contracts(ChainClient("http://127.0.0.1:9", timeout_s=0.5), chain.deployment)
    with pytest.raises(TransientError) as caught:
        gone.pools.count_pools()
    assert caught.value.code == "chain_unreachable"


def test_get_terms__no_such_pool__says_what_to_do(chain):
    with pytest.raises(OperatorError) as caught:
        chain.contracts.pools.get_terms(99)
    assert caught.value.code == "unknown_pool"
    assert "covey pool create" in caught.value.message
