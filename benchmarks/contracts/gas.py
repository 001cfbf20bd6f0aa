"""Gas of every verb of the contracts on Anvil, and what a submission costs when 300 contributors claim.

`make bench NAME=gas`; `--check` compares every verb with contracts/gas.json and fails where one grew by more than 5 %,
`--update` writes that file.  Steady state: what a verb touches is not zero, two sign, the ring of epochs is full.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from eth_utils.crypto import keccak

from benchmarks.contracts.gas_fixture import CONTRIBUTORS, EPOCH_UNITS, SUBMISSIONS, GasFixture, open_gas_fixture
from benchmarks.harness import Measurement, report
from covey.chain.history import KEPT_EPOCHS
from covey.chain.structs import BondKind
from covey.protocol.ids import PoolId, Step, hash_from_bytes

BASELINE = Path("contracts/gas.json")
TOLERANCE = 1.05
ANSWERS = 64
ORIGINAL = "234,995 in the original's contracts, one transaction a submission"


def measure(world: GasFixture) -> None:
    """Send every verb once or more; `world.gas` keeps the last figure of each, `world.first` the first of some."""
    measure_offices(world)
    measure_money(world)
    measure_court(world)
    measure_omissions(world)
    measure_end(world)


def measure_offices(world: GasFixture) -> None:
    pools, nodes, policies = world.contracts.pools, world.contracts.nodes, world.contracts.policies
    contributor = world.address("contributor")
    for step in range(3):
        world.send("trainer", policies.publish(world.pool, Step(step), hash_from_bytes(keccak(text=f"policy {step}"))))
    world.send("operator", nodes.invite(world.pool, [contributor]))
    world.send("operator", nodes.withdraw_invitation(world.pool, contributor))
    world.register("spare")
    consent = world.consent("rotated")
    signature = world.sign("rotated", consent, "node_registry")
    spare = world.address("spare")
    rotated = nodes.rotate_node(
        world.pool, previous=spare, node=consent.node, deadline=consent.deadline, node_signature=signature
    )
    world.send("contributor", rotated)
    world.send("contributor", nodes.remove_node(world.pool, consent.node))
    world.send("operator", pools.replace_validator(world.pool, world.address("validator-2"), spare))
    world.send("deployer", pools.pause())
    world.send("deployer", pools.unpause())


def measure_money(world: GasFixture) -> None:
    """Posts until the ring is full, two claims of each of 300 contributors, and one in a tree of two (the figure)."""
    stakes = world.contracts.stakes
    for amount in (10_000, 500):
        world.send("contributor", stakes.stake(world.pool, BondKind.CONTRIBUTOR, amount))
    for _ in range(2):
        world.send("contributor", stakes.unbond(world.pool, BondKind.CONTRIBUTOR, 10))
        world.advance(20)
        world.send("contributor", stakes.withdraw(world.pool, BondKind.CONTRIBUTOR))
    for i in range(KEPT_EPOCHS):
        world.post(units=0)
        if i == 1:
            world.filling_post = world.gas["EpochLedger.post"]
    for _ in range(2):
        posted = world.post(units=EPOCH_UNITS)
        world.advance(20)
        world.claims = [world.claim(posted, i) for i in range(CONTRIBUTORS)]
        world.run_post = world.gas["EpochLedger.post"]
    small = world.post(units=EPOCH_UNITS, payees=2)
    world.advance(20)
    world.claim(small, 0, payees=2)
    world.send("operator", world.contracts.ledger.fund_pool(world.pool, 5))
    falls = world.post(units=1)
    world.send("arbiter", world.contracts.ledger.disable_epoch(world.pool, falls.record))


def measure_court(world: GasFixture) -> None:
    court = world.contracts.court
    for task in range(1, 4):
        accused, _ = world.propose(task)
        world.advance(10)
        world.send("deployer", court.execute(accused))
    accused, findings = world.propose(4)
    world.send("arbiter", court.veto(accused))
    for verdict, signature in findings:
        world.send("deployer", court.slash_signer(accused, verdict, signature))
    for task in (5, 6):
        a = world.receipt(task)
        b = replace(a, work_key=hash_from_bytes(keccak(text="another file")))
        signatures = [world.sign("node", each, "slashing_court") for each in (a, b)]
        world.send("deployer", court.slash_for_equivocation(a, signatures[0], b, signatures[1]))
    accused, _ = world.propose(7)
    world.advance(10 + 24 * 3600)
    world.send("deployer", court.lapse(accused))


def measure_omissions(world: GasFixture) -> None:
    ledger = world.contracts.ledger
    world.answer = answer_together(world, range(100, 100 + ANSWERS)) / ANSWERS
    for task in (10, 11):
        answer_together(world, [task])
    for task in (12, 13):
        receipt = world.receipt(task)
        world.send("contributor", world.challenge(receipt, ledger.epochs_of(world.pool) - 1))
        world.advance(10)
        world.send("deployer", ledger.resolve_omission(receipt))


def answer_together(world: GasFixture, tasks: Sequence[int]) -> int:
    """Gas of one transaction that answers the challenges of these tasks' receipts."""
    receipts = [world.receipt(task) for task in tasks]
    posted, inclusions = world.post_with_leaves(receipts)
    for receipt in receipts:
        world.send("contributor", world.challenge(receipt, posted.epoch))
    return world.send("operator", world.contracts.ledger.answer_omissions(posted.record, posted.header, inclusions))


def measure_end(world: GasFixture) -> None:
    world.send("operator", world.contracts.pools.end_pool(world.pool))
    world.advance(100)
    world.send("operator", world.contracts.ledger.refund_pool(PoolId(world.pool)))


def build_claims(world: GasFixture) -> list[Measurement]:
    gas = world.gas
    verbs = {
        "post_epoch_gas": "EpochLedger.post",
        "claim_gas": "EpochLedger.claim",
        "challenge_gas": "EpochLedger.challengeOmission",
        "slash_propose_gas": "SlashingCourt.propose",
        "slash_veto_gas": "SlashingCourt.veto",
        "slash_execute_gas": "SlashingCourt.execute",
    }
    claims = [Measurement(name=name, value=gas[verb], unit="gas", n=1) for name, verb in verbs.items()]
    post = gas["EpochLedger.post"] / SUBMISSIONS
    claims += [
        Measurement(name="post_gas_per_submission", value=post, unit="gas", n=SUBMISSIONS, peer=ORIGINAL),
        Measurement(
            name="run_gas_per_submission",
            value=(world.run_post + sum(world.claims)) / SUBMISSIONS,
            unit="gas",
            n=SUBMISSIONS,
            peer=ORIGINAL,
        ),
        Measurement(
            name="claim_gas_of_300_contributors",
            value=sum(world.claims) / CONTRIBUTORS,
            unit="gas",
            n=CONTRIBUTORS,
        ),
        Measurement(name="answer_gas_per_receipt", value=world.answer, unit="gas", n=ANSWERS),
        Measurement(name="first_claim_gas", value=world.first["EpochLedger.claim"], unit="gas", n=1),
        Measurement(name="first_post_epoch_gas", value=world.first["EpochLedger.post"], unit="gas", n=1),
        Measurement(name="filling_post_epoch_gas", value=world.filling_post, unit="gas", n=1),
        Measurement(name="first_slash_propose_gas", value=world.first["SlashingCourt.propose"], unit="gas", n=1),
    ]
    others = {verb: used for verb, used in sorted(gas.items()) if verb not in verbs.values()}
    return claims + [Measurement(name=verb, value=used, unit="gas", n=1) for verb, used in others.items()]


def find_growth(gas: dict[str, int], baseline: dict[str, int]) -> list[str]:
    """What is wrong with the figures: verbs that grew too much, are new, or were not measured."""
    wrong = [f"{verb} is not in {BASELINE}" for verb in gas.keys() - baseline.keys()]
    wrong += [f"{verb} was not measured" for verb in baseline.keys() - gas.keys()]
    for verb in gas.keys() & baseline.keys():
        if gas[verb] > baseline[verb] * TOLERANCE:
            wrong.append(f"{verb} takes {gas[verb]}, {gas[verb] / baseline[verb] - 1:.1%} more than {baseline[verb]}")
    return sorted(wrong)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Gas of every verb.")
    parser.add_argument("--check", action="store_true", help=f"compare with {BASELINE}")
    parser.add_argument("--update", action="store_true", help=f"write {BASELINE}")
    options = parser.parse_args(arguments)
    with open_gas_fixture() as world:
        measure(world)
        report("gas", build_claims(world))
        figures = dict(sorted(world.gas.items()))
    if options.update:
        BASELINE.write_text(json.dumps(figures, indent=1) + "\n")
    wrong = find_growth(figures, json.loads(BASELINE.read_text())) if options.check else []
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        print("accept new figures with: make bench NAME=gas ARGS=--update", file=sys.stderr)
    return 1 if wrong else 0
