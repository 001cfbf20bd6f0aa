"""Python and Solidity together: every class of `covey.chain.contracts` on a real chain."""

from dataclasses import astuple, fields

import pytest

from covey.chain import events
from covey.chain.client import ChainClient
from covey.chain.contracts import OMISSION_BOND, Contracts
from covey.chain.follower import Follower
from covey.chain.history import History
from covey.chain.structs import (
    Accusation,
    Balance,
    BondKind,
    CaseState,
    ChallengeState,
    EpochRecord,
    PoolState,
    Settlement,
)
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.ids import ZERO_HASH, hash_from_bytes
from covey.protocol.merkle import MerkleTree, compute_leaf, compute_reward_leaf
from covey.protocol.messages import Countersignature, NodeRegistration, Receipt, Verdict, compute_struct_hash, sign
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


def propose(chain, pool: int, receipt: Receipt) -> Accusation:
    domain = chain.domain("slashing_court")
    verdicts = [make_verdict(chain, pool, receipt, i) for i in (2, 0)]
    signatures = [
        sign(verdict, domain, chain.wallets[f"validator-{i}"]) for verdict, i in zip(verdicts, (2, 0), strict=True)
    ]
    signature = sign(receipt, domain, chain.wallets["node"])
    chain.send("validator-1", chain.contracts.court.propose(receipt, signature, verdicts, signatures))
    return Accusation(
        receipt_hash=compute_struct_hash(receipt), pool=pool, node=receipt.node, contributor=receipt.contributor
    )


def make_verdict(chain, pool: int, receipt: Receipt, i: int) -> Verdict:
    return Verdict(
        pool=pool,
        receipt_hash=compute_struct_hash(receipt),
        work_key=receipt.work_key,
        validator=chain.address(f"validator-{i}"),
        outcome=2,
        reason=7,
        severity=2,
        units=0,
        evidence_hash=word(6),
        deadline=receipt.deadline,
    )


def make_header(chain, pool: int, *, work_root: str, reward_root: str, units: int) -> EpochHeader:
    """The header that may be posted next."""
    ledger = chain.contracts.ledger
    return EpochHeader(
        pool=pool,
        epoch=ledger.epochs_of(pool),
        work_root=work_root,
        reward_root=reward_root,
        leaf_count=2,
        units=units,
        data_hash=word(2),
        previous_hash=ledger.head_of(pool),
    )


def post(chain, pool: int, header: EpochHeader) -> events.EpochPosted:
    chain.advance(1)
    chain.send("operator", chain.contracts.ledger.post(header))
    found = History(client=chain.client, contracts=chain.contracts).find_epoch(pool, header.epoch)
    assert found is not None
    return found


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
    ledger = chain.contracts.ledger
    assert (ledger.escrow_of(pool), ledger.owed_of(pool)) == (1_000_000, 0)
    assert ledger.get_settlement(pool) == Settlement(posted=0, funded=1_000_000, epochs=0, last_posted_at=0)
    assert pools.is_open(pool)
    terms = pools.get_terms(pool)
    assert (terms.trainer, terms.reward_per_unit, terms.quorum) == (chain.address("trainer"), 3, 2)
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
    header = make_header(chain, pool, work_root=word(1), reward_root=tree.root, units=50)
    posted = post(chain, pool, header)
    assert posted.header == header
    assert posted.record == EpochRecord(
        header_hash=header.compute_hash(),
        reward_root=tree.root,
        epoch=0,
        final_at=chain.now() + 20,
        reward=150,
        cumulative=150,
    )
    assert ledger.hash_header(header) == ledger.head_of(pool) == posted.record.header_hash
    assert ledger.is_posted(pool, posted.record)

    history = History(client=chain.client, contracts=chain.contracts)
    claim = ledger.claim(pool, posted.record, contributor, 90, tree.get_proof(leaves[contributor]))
    assert history.find_claimable(pool, now=chain.now() + 19) is None
    with pytest.raises(ProtocolError, match="NotFinal"):
        chain.send("deployer", claim)
    chain.advance(20)
    post(chain, pool, make_header(chain, pool, work_root=word(1), reward_root=word(3), units=0))
    assert history.find_claimable(pool, now=chain.now()) == posted
    before = chain.contracts.token.balance_of(contributor)
    chain.send("deployer", claim)
    assert chain.contracts.token.balance_of(contributor) == before + 90
    assert (ledger.claimed_of(pool, contributor), ledger.owed_of(pool)) == (90, 60)
    assert without_place(read_events(chain)[-1]) == (events.RewardClaimed, pool, 0, contributor, 90)


def test_epoch__disabled__cannot_be_claimed(chain):
    pool = chain.open_pool()
    ledger = chain.contracts.ledger
    stands = post(chain, pool, make_header(chain, pool, work_root=word(1), reward_root=word(2), units=5))
    falls = post(chain, pool, make_header(chain, pool, work_root=word(1), reward_root=word(3), units=7))
    chain.send("arbiter", ledger.disable_epoch(pool, falls.record))
    assert ledger.is_posted(pool, stands.record)
    assert not ledger.is_posted(pool, falls.record)
    assert without_place(read_events(chain)[-1]) == (events.EpochDisabled, pool, 1)
    with pytest.raises(ProtocolError, match="UnknownEpoch"):
        chain.send("deployer", ledger.claim(pool, falls.record, chain.address("node"), 5, []))
    chain.advance(20)
    history = History(client=chain.client, contracts=chain.contracts)
    assert history.find_claimable(pool, now=chain.now()) == stands
    assert history.find_epoch(pool, 2) is None


def test_case__proposed_by_a_quorum_in_any_order__slashes_after_the_window(chain):
    pool = chain.open_pool()
    chain.join(pool)
    receipt = make_receipt(chain, pool)
    court = chain.contracts.court
    assert court.hash_receipt(receipt) == compute_struct_hash(receipt)
    accusation = propose(chain, pool, receipt)
    case = court.get_case(accusation)
    assert (case.state, case.amount, case.reason) == (CaseState.LOCKED, 60, 7)
    assert chain.contracts.stakes.locked_of(pool, chain.address("contributor")) == 60
    assert chain.contracts.stakes.get_exposure(pool, chain.address("contributor")).strikes == 1
    assert case.veto_until == chain.now() + 10
    assert (
        History(client=chain.client, contracts=chain.contracts).find_accusation(accusation.receipt_hash) == accusation
    )
    with pytest.raises(ProtocolError, match="WindowOpen"):
        chain.send("deployer", court.execute(accusation))
    chain.advance(10)
    chain.send("deployer", court.execute(accusation))
    assert court.get_case(accusation).state is CaseState.SLASHED
    assert chain.contracts.stakes.stake_of(pool, BondKind.CONTRIBUTOR, chain.address("contributor")) == 40
    executed = next(event for event in read_events(chain) if isinstance(event, events.CaseExecuted))
    assert (executed.receipt_hash, executed.amount) == (accusation.receipt_hash, 60)
    assert executed.contributor == chain.address("contributor")


def test_case__vetoed_or_lapsed__frees_the_stake(chain):
    pool = chain.open_pool()
    chain.join(pool)
    court = chain.contracts.court
    vetoed = propose(chain, pool, make_receipt(chain, pool))
    chain.send("arbiter", court.veto(vetoed))
    lapsed = propose(chain, pool, make_receipt(chain, pool, task=2))
    chain.advance(24 * 3600 + 10)
    chain.send("deployer", court.lapse(lapsed))
    assert court.get_case(vetoed).state is CaseState.VETOED
    assert court.get_case(lapsed).state is CaseState.LAPSED
    assert chain.contracts.stakes.locked_of(pool, chain.address("contributor")) == 0


def test_case__vetoed__costs_its_signers(chain):
    pool = chain.open_pool()
    chain.join(pool)
    receipt = make_receipt(chain, pool)
    vetoed = propose(chain, pool, receipt)
    chain.send("arbiter", chain.contracts.court.veto(vetoed))
    verdict = make_verdict(chain, pool, receipt, 0)
    signature = sign(verdict, chain.domain("slashing_court"), chain.wallets["validator-0"])
    chain.send("deployer", chain.contracts.court.slash_signer(vetoed, verdict, signature))
    stakes = chain.contracts.stakes
    assert stakes.get_balance(pool, BondKind.VALIDATOR, verdict.validator) == Balance(bonded=5, leaving=0)
    event = without_place(read_events(chain)[-1])
    assert event == (events.SignerSlashed, vetoed.receipt_hash, pool, verdict.validator, 15)


def test_history__no_such_case__is_none(chain):
    assert History(client=chain.client, contracts=chain.contracts).find_accusation(word(77)) is None


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


def test_equivocation__two_files_for_one_lease__slashes_at_once(chain):
    pool = chain.open_pool()
    chain.join(pool)
    a, b = make_receipt(chain, pool, work_key=word(1)), make_receipt(chain, pool, work_key=word(2))
    signatures = [sign(each, chain.domain("slashing_court"), chain.wallets["node"]) for each in (a, b)]
    chain.send("deployer", chain.contracts.court.slash_for_equivocation(a, signatures[0], b, signatures[1]))
    event = next(event for event in read_events(chain) if isinstance(event, events.EquivocationSlashed))
    assert (event.task, event.lease, event.amount) == (1, 9, 60)


def test_omission__countersigned_and_left_out__is_paid_from_the_operators_bond(chain):
    pool = chain.open_pool()
    contracts = chain.contracts
    chain.bond("operator", pool, BondKind.OPERATOR, 500)
    included, omitted = make_receipt(chain, pool), make_receipt(chain, pool, task=2)
    leaf = make_leaf(included)
    tree = MerkleTree([hash_leaf(leaf), bytes([7]) * 32])
    posted = post(chain, pool, make_header(chain, pool, work_root=tree.root, reward_root=word(1), units=50))

    for receipt in (included, omitted):
        promise = Countersignature(receipt_hash=compute_struct_hash(receipt), block_number=3, latest_epoch=0)
        signature = sign(promise, chain.domain("epoch_ledger"), chain.wallets["operator"])
        chain.send("node", contracts.ledger.challenge_omission(receipt, promise, signature))
    proof = tree.get_proof(hash_leaf(leaf))
    answer = contracts.ledger.answer_omission(included, posted.record, posted.header, leaf, proof)
    chain.send("operator", answer)
    chain.advance(10)
    before = contracts.token.balance_of(chain.address("contributor"))
    chain.send("deployer", contracts.ledger.resolve_omission(omitted))
    assert contracts.token.balance_of(chain.address("contributor")) == before + 150
    hashes = [compute_struct_hash(receipt) for receipt in (included, omitted)]
    states = [contracts.ledger.get_challenge(receipt_hash).state for receipt_hash in hashes]
    assert states == [ChallengeState.ANSWERED, ChallengeState.UPHELD]
    assert chain.client.get_balance(contracts.ledger.address) == contracts.ledger.ether_of(chain.address("node"))
    chain.send("node", contracts.ledger.withdraw_ether())
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
