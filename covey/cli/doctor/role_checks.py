"""Checks of one role. They turn the snapshot of `gathering` into the rows of `covey doctor --config`.

`check_role` gathers and judges. Each check is a pure function of the snapshot, so tests can build snapshots by hand.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from covey.chain.structs import PoolState
from covey.cli.config import Role
from covey.cli.doctor.isolation_check import check_isolation
from covey.cli.doctor.machine_checks import (
    check_clock,
    check_device,
    check_disk,
    check_engine,
    check_memory,
    check_port,
    skip_unpublished,
)
from covey.cli.doctor.snapshot import (
    ChainFacts,
    Check,
    CoordinatorFacts,
    PoolFacts,
    Snapshot,
    Trouble,
    fail,
    ok,
    skip,
    tell,
    warn,
)
from covey.protocol.policy_record import PolicyRecord

if TYPE_CHECKING:
    from coordinator.config import CoordinatorConfig
    from covey.runtime.settings import RoleSettings

TRANSACTION_GAS = 500_000
"""Gas of one transaction of a role, rounded up."""
FEW_TRANSACTIONS = 100
"""If the account's ether pays for fewer transactions than this, the check warns."""


def check_role(
    role: Role, settings: "RoleSettings | CoordinatorConfig", *, raw: bool, clock: Callable[[], float] = time.time
) -> list[Check]:
    """Check this machine and the network for a role with these settings. Takes at most half a minute and sends nothing.

    With `raw`, amounts are in the token's smallest unit.
    """
    from covey.cli.doctor.gathering import gather

    return judge(gather(role, settings, raw=raw, clock=clock))


def judge(seen: Snapshot) -> list[Check]:
    """Return all rows of the snapshot's role, in the order in which problems should be fixed."""
    return [check(seen) for check in CHECKS[seen.role]]


def check_key(seen: Snapshot) -> Check:
    if isinstance(seen.address, Trouble):
        return tell("key", seen.address)
    return ok("key", f"{seen.settings.key_file} is the key of {seen.address}")


# The chain


def check_chain(seen: Snapshot) -> Check:
    if isinstance(seen.deployment, Trouble):
        return tell("chain", seen.deployment)
    if seen.chain is None or isinstance(seen.chain, Trouble):
        return tell("chain", seen.chain or Trouble(detail="not checked"))
    chain, wanted = seen.chain, seen.deployment.chain_id
    if chain.chain_id != wanted:
        detail = (
            f"{chain.url} serves chain {chain.chain_id}, but the contracts in the deployment file are on chain {wanted}"
        )
        return fail("chain", detail, "Correct rpc_url or deployment")
    if chain.codeless:
        detail = f"chain {wanted} has no contract code at the addresses of {', '.join(chain.codeless)}"
        return fail("chain", detail, "Use the deployment file of the running chain, or a chain node that is in sync")
    return ok("chain", f"{chain.url} serves chain {wanted}, and all contracts have code")


def check_pool(seen: Snapshot) -> Check:
    if seen.pool is None:
        return skip("pool", "chain")
    if isinstance(seen.pool, Trouble):
        return tell("pool", seen.pool)
    name, steps = f"pool {seen.settings.pool}", seen.pool.steps
    if seen.pool.state is PoolState.CREATED:
        return warn("pool", f"{name} has not been started", "Ask the operator to run covey pool start")
    if seen.pool.state is PoolState.ENDED:
        fix = (
            "Join another pool"
            if seen.role == "worker"
            else "Create another pool to continue; remaining work of this one is still settled"
        )
        return warn("pool", f"{name} has ended, so there is no new work", fix)
    return ok("pool", f"{name} is active, {steps} {'policy is' if steps == 1 else 'policies are'} published")


def check_balance(seen: Snapshot) -> Check:
    if seen.role == "worker":
        return ok("balance", "a node sends no transactions and needs no ether")
    if not isinstance(seen.chain, ChainFacts):
        return skip("balance", "chain")
    if seen.chain.balance is None:
        return skip("balance", "key")
    cost = TRANSACTION_GAS * max(1, seen.chain.gas_price)
    count = seen.chain.balance // cost
    detail = f"{seen.address} has {seen.chain.balance / 10**18:.6g} ether, gas for about {count} transactions"
    fix = f"Send ether to {seen.address}; on a devnet: covey devnet fund {seen.address} --folder FOLDER"
    if not count:
        return fail("balance", detail, fix)
    return warn("balance", detail, fix) if count < FEW_TRANSACTIONS else ok("balance", detail)


def check_named_on_chain(seen: Snapshot) -> Check:
    """Check that the chain assigns the role to the role's key."""
    if isinstance(seen.address, Trouble) or not isinstance(seen.pool, PoolFacts):
        return skip("role", "key" if isinstance(seen.address, Trouble) else "pool")
    pool, number, key = seen.pool, seen.settings.pool, seen.address
    if seen.role == "validator":
        fix = "Set key_file to the key of a validator in covey pool show, or ask the operator to run covey pool"
        fix += f" replace-validator OLD {key}"
        is_named, named = pool.is_validator, "a validator"
    else:
        is_trainer = seen.role == "trainer"
        holder = pool.terms.trainer if is_trainer else pool.terms.signer
        fix = f"Set key_file to the key of {holder}"
        is_named, named = holder == key, "the trainer" if is_trainer else "the signer"
    if not is_named:
        return fail("role", f"{key} is not {named} of pool {number}", fix)
    return ok("role", f"{key} is {named} of pool {number}")


def check_bond(seen: Snapshot) -> Check:
    """Check the bond. A validator's verdicts do not count without one. It is optional for an operator."""
    if isinstance(seen.address, Trouble) or not isinstance(seen.pool, PoolFacts):
        return skip("bond", "key" if isinstance(seen.address, Trouble) else "pool")
    pool, stake, needed = seen.pool, seen.pool.stake, seen.pool.terms.validator_bond
    held = pool.format_amount(stake)
    if seen.role == "coordinator":
        if stake:
            return ok("bond", f"a bond of {held} backs the operator's promises")
        fix = (
            "Run covey stake add AMOUNT --kind operator with the operator's key, because "
            "contributors may wait for a bond"
        )
        return warn("bond", "the operator has put up no bond", fix)
    if stake < needed:
        missing = pool.format_argument(needed - stake)
        fix = f"Run covey stake add {missing} --kind validator --pool {seen.settings.pool} with this key"
        detail = f"{seen.address} has a bond of {held}, but the pool requires {pool.format_amount(needed)}"
        return fail("bond", detail, fix)
    return ok("bond", f"the bond is {held}, and the pool requires {pool.format_amount(needed)}")


def check_registration(seen: Snapshot) -> Check:
    if isinstance(seen.address, Trouble) or not isinstance(seen.pool, PoolFacts):
        return skip("registration", "key" if isinstance(seen.address, Trouble) else "pool")
    node, settings = seen.address, seen.settings
    if seen.pool.contributor is None:
        fix = "Run covey worker register with the contributor's key:"
        fix += f" --node-key-file {settings.key_file} --deployment {settings.deployment} --pool {settings.pool}"
        if seen.pool.terms.is_invite_only:
            fix += "; the operator must have run covey pool invite with the contributor's address"
        return fail("registration", f"no contributor has registered the node {node}", fix)
    detail = f"contributor {seen.pool.contributor} has registered the node {node}"
    if not isinstance(seen.coordinator, CoordinatorFacts):
        return ok("registration", detail)
    known = seen.coordinator.nodes.get(node)
    if known is None or known.suspended == "removed":
        return ok("registration", f"{detail}; the worker will announce itself to the coordinator when it starts")
    if known.suspended:
        detail = f"the coordinator has suspended {node}: {known.suspended}"
        other = "a node of another contributor" if known.suspended == "strikes" else "another node"
        return fail("registration", detail, f"Fix the cause of the suspension, then register {other}")
    return ok("registration", f"{detail}; {known.accepted} of its submissions were accepted")


def check_stake(seen: Snapshot) -> Check:
    """Check that the contributor's free stake covers all of its nodes."""
    if not isinstance(seen.pool, PoolFacts) or seen.pool.contributor is None:
        return skip("stake", "registration")
    pool, owner, count = seen.pool, seen.pool.contributor, len({*seen.pool.nodes, seen.address})
    needed, held = pool.terms.min_stake * count, pool.format_amount(max(0, pool.stake))
    detail = (
        f"{owner} has a free stake of {held}, but the pool requires {pool.format_amount(needed)} for {count} node(s)"
    )
    if pool.stake < needed:
        missing = pool.format_argument(needed - pool.stake)
        return fail(
            "stake", detail, f"Run covey stake add {missing} --pool {seen.settings.pool} with the key of {owner}"
        )
    return ok("stake", detail)


# Coordinator and relays


def check_coordinator(seen: Snapshot) -> Check:
    facts, pool = seen.coordinator, seen.settings.pool
    if facts is None or isinstance(facts, Trouble):
        return tell("coordinator", facts or Trouble(detail="not checked"))
    if facts.pool != pool:
        return fail(
            "coordinator",
            f"the coordinator serves pool {facts.pool}, not {pool}",
            "Correct the setting pool or coordinator_url",
        )
    if not isinstance(seen.pool, PoolFacts):
        return warn(
            "coordinator",
            f"the coordinator serves pool {pool}, but its parameters could not be compared with the chain's",
            'Fix the problem in the row "pool" first',
        )
    if isinstance(facts.params, Trouble):
        return fail("coordinator", facts.params.detail, "Correct deployment or coordinator_url")
    return ok("coordinator", f"the coordinator serves pool {pool} with the parameters that are on chain")


def check_relays(seen: Snapshot) -> Check:
    if not isinstance(seen.pool, PoolFacts):
        return skip("relays", "pool")
    if not seen.pool.steps:
        return skip_unpublished("relays", seen)
    if not seen.relays:
        if seen.role != "coordinator" and not isinstance(seen.coordinator, CoordinatorFacts):
            return skip("relays", "coordinator")
        return fail(
            "relays",
            "neither the settings nor the coordinator list any relay",
            "Set relays and start one with covey relay run",
        )
    wrong = [found.detail for found in seen.relays.values() if isinstance(found, Trouble)]
    good = [url for url, found in seen.relays.items() if isinstance(found, PolicyRecord)]
    detail = f"{len(good)} of {len(seen.relays)} relays serve policy {seen.pool.steps - 1}"
    if not wrong:
        return ok("relays", detail)
    make, fix = (
        (warn, "Start the failing relay, or remove it from relays")
        if good
        else (fail, "Start a relay, or correct relays")
    )
    return make("relays", f"{detail}; {'; '.join(wrong)}", fix)


_FIRST = (check_key, check_chain, check_pool)
_LAST = (check_coordinator, check_relays, check_clock, check_disk)
_MODEL = (check_isolation, check_device, check_engine, check_memory)
CHECKS: dict[Role, tuple[Callable[[Snapshot], Check], ...]] = {
    "worker": (*_FIRST, check_registration, check_stake, check_balance, *_LAST, *_MODEL),
    "validator": (*_FIRST, check_named_on_chain, check_bond, check_balance, *_LAST, *_MODEL),
    "trainer": (*_FIRST, check_named_on_chain, check_balance, *_LAST, check_isolation, check_device, check_memory),
    "coordinator": (
        *(*_FIRST, check_named_on_chain, check_bond, check_balance, check_port),
        *(check_relays, check_clock, check_disk),
    ),
}
