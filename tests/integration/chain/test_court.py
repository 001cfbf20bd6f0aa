"""Python with Solidity on a real chain: cases, equivocation and slashed signers."""

from dataclasses import astuple

import pytest

from covey.chain import events
from covey.chain.history import History
from covey.chain.structs import Balance, BondKind, OnChainCaseState
from covey.errors import ProtocolError
from covey.protocol.eip712 import compute_struct_hash, sign
from tests.fakes.contracts import read_contract
from tests.integration.chain.making import (
    make_receipt,
    make_verdict,
    propose,
    read_events,
    without_place,
    word,
)

pytestmark = pytest.mark.integration


def test_case__proposed_by_a_quorum_in_any_order__slashes_after_the_window(chain):
    pool = chain.open_pool()
    chain.join(pool)
    receipt = make_receipt(chain, pool)
    court = chain.contracts.court
    assert read_contract(court, "hashReceipt", astuple(receipt)) == compute_struct_hash(receipt)
    accusation = propose(chain, pool, receipt)
    case = court.get_case(accusation)
    assert (case.state, case.amount, case.reason) == (OnChainCaseState.LOCKED, 60, 7)
    assert chain.contracts.stakes.locked_of(pool, chain.address("contributor")) == 60
    assert read_contract(chain.contracts.stakes, "getExposure", pool, chain.address("contributor"))[3] == 1
    assert case.veto_until == chain.now() + 10
    history = History(client=chain.client, contracts=chain.contracts)
    assert history.find_accusation(accusation.receipt_hash) == accusation
    assert (history.list_accusations(pool), history.list_accusations(pool + 1)) == ([accusation], [])
    with pytest.raises(ProtocolError, match="WindowOpen"):
        chain.send("deployer", court.execute(accusation))
    chain.advance(10)
    chain.send("deployer", court.execute(accusation))
    assert court.get_case(accusation).state is OnChainCaseState.SLASHED
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
    assert court.get_case(vetoed).state is OnChainCaseState.VETOED
    assert court.get_case(lapsed).state is OnChainCaseState.LAPSED
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


def test_equivocation__two_files_for_one_lease__slashes_at_once(chain):
    pool = chain.open_pool()
    chain.join(pool)
    a, b = make_receipt(chain, pool, work_key=word(1)), make_receipt(chain, pool, work_key=word(2))
    signatures = [sign(each, chain.domain("slashing_court"), chain.wallets["node"]) for each in (a, b)]
    chain.send("deployer", chain.contracts.court.slash_for_equivocation(a, signatures[0], b, signatures[1]))
    event = next(event for event in read_events(chain) if isinstance(event, events.EquivocationSlashed))
    assert (event.task, event.lease, event.amount) == (1, 9, 60)
