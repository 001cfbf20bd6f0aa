"""Python with Solidity on a real chain: epochs, claims and omissions."""

from dataclasses import astuple

import pytest

from covey.chain import events
from covey.chain.contracts import OMISSION_BOND
from covey.chain.history import History
from covey.chain.json_rpc import Call
from covey.chain.structs import (
    BondKind,
    ChallengeState,
    EpochRecord,
    Inclusion,
)
from covey.errors import ProtocolError
from covey.protocol.eip712 import compute_struct_hash, sign
from covey.protocol.ids import hash_from_bytes
from covey.protocol.merkle import MerkleTree, compute_reward_leaf
from covey.protocol.messages import Countersignature, Receipt
from tests.fakes.contracts import read_contract
from tests.integration.chain.making import (
    hash_leaf,
    make_header,
    make_leaf,
    make_receipt,
    post,
    read_events,
    without_place,
    word,
)

pytestmark = pytest.mark.integration


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
    assert read_contract(ledger, "hashHeader", astuple(header)) == ledger.head_of(pool) == posted.record.header_hash
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
    chain.send("arbiter", ledger.disable_epoch(pool, falls.record, is_false=True))
    assert ledger.is_posted(pool, stands.record)
    assert not ledger.is_posted(pool, falls.record)
    assert without_place(read_events(chain)[-1]) == (events.EpochDisabled, pool, 1)
    with pytest.raises(ProtocolError, match="UnknownEpoch"):
        chain.send("deployer", ledger.claim(pool, falls.record, chain.address("node"), 5, []))
    chain.advance(20)
    history = History(client=chain.client, contracts=chain.contracts)
    assert history.find_claimable(pool, now=chain.now()) == stands
    assert history.find_epoch(pool, 2) is None


def challenge(chain, receipt: Receipt) -> Call:
    """Return the call of a holder of a receipt that the operator has promised to include until a second ago."""
    now = chain.now()
    promise = Countersignature(receipt_hash=compute_struct_hash(receipt), signed_at=now - 5, due_by=now - 1)
    return chain.contracts.ledger.challenge_omission(
        receipt,
        node_signature=sign(receipt, chain.domain("slashing_court"), chain.wallets["node"]),
        promise=promise,
        promise_signature=sign(promise, chain.domain("epoch_ledger"), chain.wallets["operator"]),
    )


def test_omission__countersigned_and_left_out__is_paid_from_the_operators_bond(chain):
    pool = chain.open_pool()
    contracts = chain.contracts
    chain.join(pool)
    chain.bond("operator", pool, BondKind.OPERATOR, 500)
    receipts = [make_receipt(chain, pool, task=task) for task in (1, 2, 3)]
    *included, omitted = receipts
    leaves = [make_leaf(receipt) for receipt in included]
    tree = MerkleTree([hash_leaf(leaf) for leaf in leaves])
    posted = post(chain, pool, make_header(chain, pool, work_root=tree.root, reward_root=word(1), units=50))

    for receipt in receipts:
        chain.send("node", challenge(chain, receipt))
    inclusions = [
        Inclusion(receipt=receipt, leaf=leaf, proof=tuple(tree.get_proof(hash_leaf(leaf))))
        for receipt, leaf in zip(included, leaves, strict=True)
    ]
    chain.send("operator", contracts.ledger.answer_omissions(posted.record, posted.header, inclusions))
    with pytest.raises(ProtocolError, match="NothingToAnswer"):
        chain.send("deployer", contracts.ledger.answer_omissions(posted.record, posted.header, inclusions))
    chain.advance(10)
    before = contracts.token.balance_of(chain.address("contributor"))
    chain.send("deployer", contracts.ledger.resolve_omission(omitted))
    assert contracts.token.balance_of(chain.address("contributor")) == before + 150
    hashes = [compute_struct_hash(receipt) for receipt in receipts]
    states = [contracts.ledger.get_challenge(receipt_hash).state for receipt_hash in hashes]
    assert states == [ChallengeState.ANSWERED, ChallengeState.ANSWERED, ChallengeState.UPHELD]
    assert chain.client.get_balance(contracts.ledger.address) == contracts.ledger.ether_of(chain.address("node"))
    chain.send("node", contracts.ledger.withdraw_ether())
    assert chain.client.get_balance(contracts.ledger.address) == 0
    assert OMISSION_BOND == 10**15


def test_challenge__node_of_nobody__is_refused_with_its_name(chain):
    pool = chain.open_pool()
    post(chain, pool, make_header(chain, pool, work_root=word(1), reward_root=word(1), units=0))
    with pytest.raises(ProtocolError, match=rf"NeverBound\({chain.address('node')}, {chain.address('contributor')}\)"):
        chain.send("node", challenge(chain, make_receipt(chain, pool)))


def test_hash_from_bytes__of_a_leaf__is_what_the_ledger_computes(chain):
    leaf = make_leaf(make_receipt(chain, 1))
    found = chain.contracts.ledger._read("hashWorkLeaf", astuple(leaf))
    assert found == hash_from_bytes(hash_leaf(leaf))
