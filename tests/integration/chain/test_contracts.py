"""Python and Solidity together: every class of `covey.chain.contracts` on a real chain."""

from dataclasses import astuple, fields

import pytest

from covey.chain import events
from covey.chain.client import ChainClient
from covey.chain.contracts import OMISSION_BOND, Contracts
from covey.chain.follower import Follower
from covey.chain.structs import BondKind, CaseState, ChallengeState, PoolState
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.ids import ZERO_HASH, hash_from_bytes
from covey.protocol.merkle import MerkleTree, compute_leaf, compute_reward_leaf
from covey.protocol.messages import Countersignature, Receipt, Verdict, compute_struct_hash, sign
from covey.protocol.receipts import EpochHeader, WorkLeaf

pytestmark = pytest.mark.integration

LEAF_TYPES = (*["bytes32"] * 2, *["address"] * 2, "uint256", "uint64", "uint8", "uint8", "uint64", "bytes32")


def word(number: int) -> str:
    return f"0x{number:064x}"


def make_receipt(chain, pool: int, *, task: int = 1, work_key: str = word(5)) -> Receipt:
    return Receipt(
        pool=pool,
        task=task,
        lease=9,
        node=chain.address("node"),
        contributor=chain.address("contributor"),
        policy_version=4,
        work_key=work_key,
        groups=2,
        units=50,
        deadline=chain.now() + 100,
    )


def make_leaf(receipt: Receipt) -> WorkLeaf:
    return WorkLeaf(
        receipt_hash=compute_struct_hash(receipt),
        work_key=receipt.work_key,
        node=receipt.node,
        contributor=receipt.contributor,
        task=receipt.task,
        policy_version=receipt.policy_version,
        outcome=1,
        reason=0,
        units=50,
        evidence_hash=ZERO_HASH,
    )


def hash_leaf(leaf: WorkLeaf) -> bytes:
    values = [bytes.fromhex(v[2:]) if k == "bytes32" else v for k, v in zip(LEAF_TYPES, astuple(leaf), strict=True)]
    return compute_leaf(LEAF_TYPES, values)


def propose(chain, pool: int, receipt: Receipt) -> int:
    domain = chain.domain("slashing_court")
    verdicts, signatures = [], []
    for i in (2, 0):
        verdict = Verdict(
            pool=pool,
            receipt_hash=compute_struct_hash(receipt),
            work_key=receipt.work_key,
            validator=chain.address(f"validator-{i}"),
            outcome=2,
            reason=7,
            severity=2,
            units=0,
            evidence_hash=word(6),
            deadline=chain.now() + 100,
        )
        verdicts.append(verdict)
        signatures.append(sign(verdict, domain, chain.wallets[f"validator-{i}"]))
    signature = sign(receipt, domain, chain.wallets["node"])
    chain.send("validator-1", chain.contracts.court.propose(receipt, signature, verdicts, signatures))
    return chain.contracts.court.case_of(compute_struct_hash(receipt))


def read_events(chain) -> list[events.Event]:
    return list(Follower(chain.client, chain.deployment).poll(()).events)


def without_place(event: events.Event) -> tuple[object, ...]:
    place = {f.name for f in fields(events.Event)}
    return type(event), *(getattr(event, f.name) for f in fields(event) if f.name not in place)


def test_pool__created_funded_started_ended__is_read_back(chain):
    pool = chain.open_pool()
    pools = chain.contracts.pools
    assert pools.state_of(pool) is PoolState.ACTIVE
    assert pools.operator_of(pool) == chain.address("operator")
    assert pools.get_validators(pool) == [chain.address(f"validator-{i}") for i in range(3)]
    assert (pools.escrow_of(pool), pools.funded_of(pool), pools.owed_of(pool)) == (1_000_000, 1_000_000, 0)
    terms = pools.get_terms(pool)
    assert (terms.trainer, terms.reward_per_unit, terms.quorum) == (chain.address("trainer"), 3, 2)
    assert (terms.slash_amount, terms.challenge_window, terms.unbond_window) == (60, 10, 20)
    chain.send("operator", pools.replace_validator(pool, chain.address("validator-1"), chain.address("node")))
    assert pools.is_validator(pool, chain.address("node"))
    assert not pools.is_validator(pool, chain.address("validator-1"))
    chain.send("operator", pools.end_pool(pool))
    chain.advance(40)
    chain.send("operator", pools.refund_pool(pool))
    assert pools.escrow_of(pool) == 0
    assert [type(event).__name__ for event in read_events(chain)] == [
        "PoolCreated",
        "PoolFunded",
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
    assert nodes.is_liable(pool, chain.address("node"), chain.address("contributor"))


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


def test_epoch__posted_and_final__pays_by_proof(chain):
    pool = chain.open_pool()
    ledger, contributor = chain.contracts.ledger, chain.address("contributor")
    owed = {contributor: 90, chain.address("node"): 60}
    leaves = {
        account: compute_reward_leaf(
            chain=chain.deployment.chain_id, ledger=ledger.address, pool=pool, contributor=account, cumulative=amount
        )
        for account, amount in owed.items()
    }
    tree = MerkleTree(list(leaves.values()))
    call = ledger.post(pool, work_root=word(1), reward_root=tree.root, leaf_count=2, units=50, data_hash=word(2))
    chain.send("operator", call)
    header = EpochHeader(
        pool=pool,
        epoch=0,
        work_root=word(1),
        reward_root=tree.root,
        leaf_count=2,
        units=50,
        data_hash=word(2),
        previous_hash=ZERO_HASH,
    )
    posted = ledger.get_epoch(pool, 0)
    assert posted.header_hash == ledger.hash_header(header)
    assert (posted.units, posted.cumulative_units, posted.is_disabled) == (50, 50, False)
    assert (ledger.epochs_of(pool), ledger.units_of(pool), ledger.is_final(pool, 0)) == (1, 50, False)

    claim = ledger.claim(pool, 0, contributor, 90, tree.get_proof(leaves[contributor]))
    with pytest.raises(ProtocolError, match="NotFinal"):
        chain.send("deployer", claim)
    chain.advance(20)
    before = chain.contracts.token.balance_of(contributor)
    chain.send("deployer", claim)
    assert chain.contracts.token.balance_of(contributor) == before + 90
    assert ledger.claimed_of(pool, contributor) == 90
    assert without_place(read_events(chain)[-1]) == (events.RewardClaimed, pool, 0, contributor, 90)


def test_epoch__disabled__cannot_be_claimed(chain):
    pool = chain.open_pool()
    ledger = chain.contracts.ledger
    call = ledger.post(pool, work_root=word(1), reward_root=word(2), leaf_count=1, units=5, data_hash=word(2))
    chain.send("operator", call)
    chain.send("arbiter", ledger.disable_epoch(pool, 0))
    assert ledger.get_epoch(pool, 0).is_disabled
    assert type(read_events(chain)[-1]) is events.EpochDisabled
    with pytest.raises(ProtocolError, match="EpochIsDisabled"):
        chain.send("deployer", ledger.claim(pool, 0, chain.address("node"), 5, []))


def test_case__proposed_by_a_quorum_in_any_order__slashes_after_the_window(chain):
    pool = chain.open_pool()
    chain.join(pool)
    receipt = make_receipt(chain, pool)
    court = chain.contracts.court
    assert court.hash_receipt(receipt) == compute_struct_hash(receipt)
    case_id = propose(chain, pool, receipt)
    case = court.get_case(case_id)
    assert (case.state, case.amount, case.reason) == (CaseState.LOCKED, 60, 7)
    assert chain.contracts.stakes.locked_of(pool, chain.address("contributor")) == 60
    assert chain.contracts.stakes.get_lock(case_id).amount == 60
    with pytest.raises(ProtocolError, match="WindowOpen"):
        chain.send("deployer", court.execute(case_id))
    chain.advance(10)
    chain.send("deployer", court.execute(case_id))
    assert court.get_case(case_id).state is CaseState.SLASHED
    assert chain.contracts.stakes.stake_of(pool, BondKind.CONTRIBUTOR, chain.address("contributor")) == 40
    executed = next(event for event in read_events(chain) if isinstance(event, events.CaseExecuted))
    assert (executed.case_id, executed.contributor, executed.amount) == (case_id, chain.address("contributor"), 60)


def test_case__vetoed_or_lapsed__frees_the_stake(chain):
    pool = chain.open_pool()
    chain.join(pool)
    court = chain.contracts.court
    vetoed = propose(chain, pool, make_receipt(chain, pool))
    chain.send("arbiter", court.veto(vetoed))
    lapsed = propose(chain, pool, make_receipt(chain, pool, task=2))
    chain.advance(24 * 3600 + 10)
    chain.send("deployer", chain.contracts.stakes.release_expired(lapsed))
    chain.send("deployer", court.lapse(lapsed))
    assert court.get_case(vetoed).state is CaseState.VETOED
    assert court.get_case(lapsed).state is CaseState.LAPSED
    assert chain.contracts.stakes.locked_of(pool, chain.address("contributor")) == 0


def test_equivocation__two_files_for_one_lease__slashes_at_once(chain):
    pool = chain.open_pool()
    chain.join(pool)
    a, b = make_receipt(chain, pool, work_key=word(1)), make_receipt(chain, pool, work_key=word(2))
    signatures = [sign(each, chain.domain("slashing_court"), chain.wallets["node"]) for each in (a, b)]
    chain.send("deployer", chain.contracts.court.slash_for_equivocation(a, signatures[0], b, signatures[1]))
    event = read_events(chain)[-1]
    assert without_place(event)[0] is events.EquivocationSlashed
    assert (event.task, event.lease, event.amount) == (1, 9, 60)


def test_omission__countersigned_and_left_out__is_paid_from_the_operators_bond(chain):
    pool = chain.open_pool()
    contracts = chain.contracts
    chain.send("operator", contracts.token.approve(contracts.stakes.address, 500))
    chain.send("operator", contracts.stakes.stake(pool, BondKind.OPERATOR, 500))
    included, omitted = make_receipt(chain, pool), make_receipt(chain, pool, task=2)
    leaf = make_leaf(included)
    tree = MerkleTree([hash_leaf(leaf), bytes([7]) * 32])
    call = contracts.ledger.post(
        pool, work_root=tree.root, reward_root=word(1), leaf_count=2, units=50, data_hash=word(2)
    )
    chain.send("operator", call)

    ids = []
    for receipt in (included, omitted):
        promise = Countersignature(receipt_hash=compute_struct_hash(receipt), block_number=3, latest_epoch=0)
        signature = sign(promise, chain.domain("epoch_ledger"), chain.wallets["operator"])
        chain.send("node", contracts.ledger.challenge_omission(receipt, promise, signature))
        ids.append(contracts.ledger.challenge_of(promise.receipt_hash))
    header = EpochHeader(
        pool=pool,
        epoch=0,
        work_root=tree.root,
        reward_root=word(1),
        leaf_count=2,
        units=50,
        data_hash=word(2),
        previous_hash=ZERO_HASH,
    )
    chain.send("operator", contracts.ledger.answer_omission(ids[0], header, leaf, tree.get_proof(hash_leaf(leaf))))
    chain.advance(10)
    before = contracts.token.balance_of(chain.address("contributor"))
    chain.send("deployer", contracts.ledger.resolve_omission(ids[1]))
    assert contracts.token.balance_of(chain.address("contributor")) == before + 150
    assert [contracts.ledger.get_challenge(i).state for i in ids] == [ChallengeState.ANSWERED, ChallengeState.UPHELD]
    assert chain.client.get_balance(contracts.ledger.address) == 0
    assert OMISSION_BOND == 10**15


def test_hash_from_bytes__of_a_leaf__is_what_the_ledger_computes(chain):
    leaf = make_leaf(make_receipt(chain, 1))
    found = chain.contracts.ledger._read("hashWorkLeaf", astuple(leaf))
    assert found == hash_from_bytes(hash_leaf(leaf))


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
