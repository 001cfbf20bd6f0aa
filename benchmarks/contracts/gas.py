"""Gas of every contract function on Anvil in the steady state, called by the roles' own Python code; bars are aims.

Steady state: storage slots that a call writes are not zero before, two validators sign, and the ledger's ring of epochs
is full.  `--check`, a stage of `make check`, fails if a function takes 5 % more than in contracts/gas.json; `--update`
writes that file.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from eth_utils.crypto import keccak

from benchmarks.contracts.gas_fixture import CONTRIBUTORS, EPOCH_UNITS, SUBMISSIONS, GasFixture, open_gas_fixture
from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, set_bars
from covey.chain.structs import BondKind
from covey.protocol.ids import PoolId, Step, hash_from_bytes
from covey.protocol.promises import KEPT_EPOCHS

BASELINE = Path("contracts/gas.json")
TOLERANCE = 1.05
"""Largest ratio of a function's gas to its baseline."""
ANSWERS = 64
"""Challenged receipts that one transaction answers."""
AIMS = {
    "post_epoch_gas": Bar(most=90_000),
    "claim_gas": Bar(most=60_000),
    "claim_gas_of_300_contributors": Bar(most=60_000),
    "first_claim_gas": Bar(most=95_000),
    "challenge_gas": Bar(most=75_000),
    "slash_propose_gas": Bar(most=110_000),
    "slash_veto_gas": Bar(most=40_000),
    "slash_execute_gas": Bar(most=80_000),
    "post_gas_per_submission": Bar(most=15),
}
"""Aims of the design.  A run does not fail if it misses one.

Six are missed, each for a guard that the aims did not count, or for a proof:

- post_epoch_gas: the two attestations take 27,000. Each takes 3,000 for the recovery, 4,200 for two cold slots and
  1,100 of calldata. The call of StakeManager takes 2,600.
- claim_gas: the payment is a call of the contract to itself, which measures what was moved.
- claim_gas_of_300_contributors: calldata and hashing of a proof of nine hashes take 6,100.
- challenge_gas: the signature of the node and its binding take 16,700.
- slash_propose_gas: the check of each signer's bond takes 7,300, the counts of strikes and of the epoch's cap 3,000.
  Calldata and base take 30,700, the new slot of the case 22,100, nine cold reads 18,900, three signatures 9,000 and
  three cold contracts 7,800.
- slash_veto_gas: the arbiter is kept in PoolRegistry and the stake in StakeManager, because each guard is kept where
  its state is.  A cold call with a cold slot takes 4,700.

Compiling by viaIR would save 3 to 4 % and take four times as long.
"""
ORIGINAL = "original contracts: 234,995, one transaction per submission"


def measure(fixture: GasFixture) -> None:
    """Send every function once or more.  `fixture.gas` keeps the last figure of each, `fixture.first` the first one."""
    measure_administration(fixture)
    measure_payments(fixture)
    measure_court(fixture)
    measure_omissions(fixture)
    measure_end(fixture)


def measure_administration(fixture: GasFixture) -> None:
    """Publish policies, invite, register, rotate and remove nodes, replace a validator, pause and unpause."""
    pools, nodes, policies = fixture.contracts.pools, fixture.contracts.nodes, fixture.contracts.policies
    contributor = fixture.address("contributor")
    for step in range(3):
        policy_hash = hash_from_bytes(keccak(text=f"policy {step}"))
        fixture.send("trainer", policies.publish(fixture.pool, Step(step), policy_hash))
    fixture.send("operator", nodes.invite(fixture.pool, [contributor]))
    fixture.send("operator", nodes.withdraw_invitation(fixture.pool, contributor))
    fixture.register("spare")
    consent = fixture.consent("rotated")
    signature = fixture.sign("rotated", consent, "node_registry")
    spare = fixture.address("spare")
    rotated = nodes.rotate_node(
        fixture.pool, previous=spare, node=consent.node, deadline=consent.deadline, node_signature=signature
    )
    fixture.send("contributor", rotated)
    fixture.send("contributor", nodes.remove_node(fixture.pool, consent.node))
    fixture.send("operator", pools.replace_validator(fixture.pool, fixture.address("validator-2"), spare))
    fixture.send("deployer", pools.pause())
    fixture.send("deployer", pools.unpause())


def measure_payments(fixture: GasFixture) -> None:
    """Stake, unbond and withdraw; post epochs until the ring is full; claim.

    Each of 300 contributors claims twice.  `claim_gas` is that of the last claim, from a tree of two contributors.
    """
    stakes = fixture.contracts.stakes
    for amount in (10_000, 500):
        fixture.send("contributor", stakes.stake(fixture.pool, BondKind.CONTRIBUTOR, amount))
    permit = fixture.permit("contributor", stakes.address, 500)
    fixture.send("contributor", stakes.stake_with_permit(fixture.pool, BondKind.CONTRIBUTOR, 500, permit))
    fixture.send("contributor", fixture.contracts.ledger.set_payee(fixture.pool, fixture.address("spare")))
    for _ in range(2):
        fixture.send("contributor", stakes.unbond(fixture.pool, BondKind.CONTRIBUTOR, 10))
        fixture.advance(20)
        fixture.send("contributor", stakes.withdraw(fixture.pool, BondKind.CONTRIBUTOR))
    for i in range(KEPT_EPOCHS):
        fixture.post(units=0)
        if i == 1:
            fixture.filling_post = fixture.gas["EpochLedger.post"]
    for _ in range(2):
        posted = fixture.post(units=EPOCH_UNITS)
        fixture.advance(20)
        fixture.claims = [fixture.claim(posted, i) for i in range(CONTRIBUTORS)]
        fixture.run_post = fixture.gas["EpochLedger.post"]
    small = fixture.post(units=EPOCH_UNITS, payees=2)
    fixture.advance(20)
    fixture.claim(small, 0, payees=2)
    ledger = fixture.contracts.ledger
    fixture.send("operator", ledger.fund_pool(fixture.pool, 5))
    permit = fixture.permit("operator", ledger.address, 5)
    fixture.send("operator", ledger.fund_pool_with_permit(fixture.pool, 5, permit))
    disabled = fixture.post(units=1)
    fixture.send("arbiter", ledger.disable_epoch(fixture.pool, disabled.record, is_false=True))


def measure_court(fixture: GasFixture) -> None:
    """Propose, execute, veto and lapse slashes; slash a signer and two equivocations."""
    court = fixture.contracts.court
    for task in range(1, 4):
        accused, _ = fixture.propose(task)
        fixture.advance(10)
        fixture.send("deployer", court.execute(accused))
    accused, findings = fixture.propose(4)
    fixture.send("arbiter", court.veto(accused))
    for verdict, signature in findings:
        fixture.send("deployer", court.slash_signer(accused, verdict, signature))
    for task in (5, 6):
        a = fixture.receipt(task)
        b = replace(a, work_key=hash_from_bytes(keccak(text="another file")))
        signatures = [fixture.sign("node", receipt, "slashing_court") for receipt in (a, b)]
        fixture.send("deployer", court.slash_for_equivocation(a, signatures[0], b, signatures[1]))
    accused, _ = fixture.propose(7)
    fixture.advance(10 + 24 * 3600)
    fixture.send("deployer", court.lapse(accused))


def measure_omissions(fixture: GasFixture) -> None:
    """Challenge omissions, answer many together and one alone, and resolve unanswered ones."""
    ledger = fixture.contracts.ledger
    fixture.answer = answer_together(fixture, range(100, 100 + ANSWERS)) / ANSWERS
    for task in (10, 11):
        answer_together(fixture, [task])
    for task in (12, 13):
        receipt = fixture.receipt(task)
        fixture.send("contributor", fixture.challenge(receipt))
        fixture.advance(10)
        fixture.send("deployer", ledger.resolve_omission(receipt))


def answer_together(fixture: GasFixture, tasks: Sequence[int]) -> int:
    """Challenge these tasks' receipts and return the gas of the one transaction that answers all challenges."""
    receipts = [fixture.receipt(task) for task in tasks]
    posted, inclusions = fixture.post_with_leaves(receipts)
    for receipt in receipts:
        fixture.send("contributor", fixture.challenge(receipt))
    call = fixture.contracts.ledger.answer_omissions(posted.record, posted.header, inclusions)
    return fixture.send("operator", call)


def measure_end(fixture: GasFixture) -> None:
    """End the pool and refund what is left."""
    fixture.send("operator", fixture.contracts.pools.end_pool(fixture.pool))
    fixture.advance(100)
    fixture.send("operator", fixture.contracts.ledger.refund_pool(PoolId(fixture.pool)))


def build_measurements(fixture: GasFixture) -> list[Measurement]:
    """Build the measurements that documents quote, then those of all other functions."""
    gas, first = fixture.gas, fixture.first
    functions = {
        "post_epoch_gas": "EpochLedger.post",
        "claim_gas": "EpochLedger.claim",
        "challenge_gas": "EpochLedger.challengeOmission",
        "slash_propose_gas": "SlashingCourt.propose",
        "slash_veto_gas": "SlashingCourt.veto",
        "slash_execute_gas": "SlashingCourt.execute",
    }
    single: dict[str, float] = {name: gas[function] for name, function in functions.items()}
    single |= {
        "first_claim_gas": first["EpochLedger.claim"],
        "first_post_epoch_gas": first["EpochLedger.post"],
        "filling_post_epoch_gas": fixture.filling_post,
        "first_slash_propose_gas": first["SlashingCourt.propose"],
    }
    post = gas["EpochLedger.post"] / SUBMISSIONS
    run = (fixture.run_post + sum(fixture.claims)) / SUBMISSIONS
    claim = sum(fixture.claims) / CONTRIBUTORS
    measurements = [
        *(Measurement(name=name, value=value, unit="gas", n=1) for name, value in single.items()),
        Measurement(name="claim_gas_of_300_contributors", value=claim, unit="gas", n=CONTRIBUTORS),
        Measurement(name="answer_gas_per_receipt", value=fixture.answer, unit="gas", n=ANSWERS),
        Measurement(name="post_gas_per_submission", value=post, unit="gas", n=SUBMISSIONS, peer=ORIGINAL),
        Measurement(name="run_gas_per_submission", value=run, unit="gas", n=SUBMISSIONS, peer=ORIGINAL),
    ]
    others = {function: used for function, used in sorted(gas.items()) if function not in functions.values()}
    measurements += [Measurement(name=function, value=used, unit="gas", n=1) for function, used in others.items()]
    return set_bars(measurements, AIMS)


def find_growth(gas: dict[str, int], baseline: dict[str, int]) -> list[str]:
    """Return one line for each function that grew too much, has no baseline, or was not measured."""
    failures = [f"{function} is not in {BASELINE}" for function in gas.keys() - baseline.keys()]
    failures += [f"{function} was not measured" for function in baseline.keys() - gas.keys()]
    for function in gas.keys() & baseline.keys():
        used, before = gas[function], baseline[function]
        if used > before * TOLERANCE:
            failures.append(f"{function} takes {used}, {used / before - 1:.1%} more than {before}")
    return sorted(failures)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("make bench NAME=gas", description=__doc__)
    parser.add_argument("--check", action="store_true", help=f"comparison with {BASELINE}; exit code 1 if gas grew")
    parser.add_argument("--update", action="store_true", help=f"replacement of {BASELINE} by the new figures")
    options = parser.parse_args(arguments)
    with open_gas_fixture() as fixture:
        measure(fixture)
        measurements = build_measurements(fixture)
        figures = dict(sorted(fixture.gas.items()))
    if options.update:
        BASELINE.write_text(json.dumps(figures, indent=1) + "\n")
    failures = find_growth(figures, json.loads(BASELINE.read_text())) if options.check else []
    code = finish("gas", measurements, failures, arguments)
    if failures:
        print("To accept the new figures, run: make bench NAME=gas ARGS=--update", file=sys.stderr)
    return code
