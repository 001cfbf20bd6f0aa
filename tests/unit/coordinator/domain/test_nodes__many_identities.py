"""What cannot be gained by being many, by only taking leases, or by dropping those whose prompts one does not like."""

from collections.abc import Mapping

import pytest

from coordinator.db.database import Database
from coordinator.domain import nodes, steps
from covey.protocol.status import StepState
from tests.fakes.databases import empty
from tests.fakes.pool import FakePool, make_address, make_hash, make_params

pytestmark = pytest.mark.unit
UNITS = 20
"""Of each accepted task."""


def play(database: Database, owners: Mapping[str, str], rounds: int = 4) -> dict[str, int]:
    """Units of every node when all of them work as fast as they are let; `owners`: contributor of each node."""
    empty(database)
    pool = FakePool(database, make_params(groups_per_step=80))
    for node, owner in owners.items():
        with database.write() as rows:
            nodes.register_node(rows, node=make_address(node), contributor=make_address(owner))
    pool.publish(0)
    for _ in range(rounds):
        pool.now += 1
        for node in owners:
            pool.wait(node, slots=4096)
        pool.assign()
        for node in owners:
            for _ in range(64):
                task = pool.collect(node)
                if task is None:
                    break
                pool.decide(pool.submit(task), units=UNITS)
    with database.read() as rows:
        return {node: nodes.require_node(rows, make_address(node)).accepted * UNITS for node in owners}


def test_assign__many_identities__get_no_more_than_one_of_their_stake(database: Database):
    """Stake for three nodes, once under one name and once under three; beside them an honest node."""
    together = play(database, {"n1": "rich", "n2": "rich", "n3": "rich", "honest": "other"})
    apart = play(database, {"n1": "a", "n2": "b", "n3": "c", "honest": "other"})
    assert sum(apart[n] for n in ("n1", "n2", "n3")) <= sum(together[n] for n in ("n1", "n2", "n3"))
    assert apart["honest"] >= together["honest"] > 0
    assert together["n1"] == together["honest"]  # each node, whosever it is, has the same start


@pytest.mark.parametrize("hoarders", [1, 3])
def test_step__node_that_only_takes_leases__does_not_stall_it(pool: FakePool, hoarders: int):
    """Two tasks; hoarders come first and deliver nothing.  Each can block one lease, then they come last."""
    names = [f"hoarder-{i}" for i in range(hoarders)]
    pool.register(*names, "honest")
    pool.publish(0)
    started, held = pool.now, dict.fromkeys(names, 0)
    for _ in range(120):
        for name in names:
            pool.wait(name, slots=4096)
        pool.assign()
        for name in names:
            task = pool.collect(name, holding=[held[name]])
            held[name] = task.lease if task else held[name]
        pool.wait("honest")
        pool.assign()
        task = pool.collect("honest")
        if task is not None:
            pool.decide(pool.submit(task), units=UNITS)
        with pool.database.write() as rows:
            steps.close_step(rows, pool.params)
            if rows.get_step(0).state is StepState.READY:
                break
        pool.now += 1
        pool.expire()
    else:
        pytest.fail("the step is stalled")
    assert pool.now - started <= -(-hoarders // 2) * (pool.params.lease_seconds + 1)
    for name in names:  # once is bad luck: no strike, no suspension, and stake is no matter of the coordinator's
        assert (pool.strikes(name), pool.node(name).suspended, pool.node(name).accepted) == (0, "", 0)
    assert pool.node("honest").accepted == 2


def test_lease__dropped_to_redraw__gains_nothing(pool: FakePool):
    """Half of the prompts are easy.  Who delivers only those is paid less than who takes them as they come."""
    pool.params = make_params(groups_per_step=240, strikes_to_suspend=3)
    pool.register("dropper", "honest")
    pool.publish(0)
    held = {"dropper": 0, "honest": 0}
    given: dict[str, list[int]] = {"dropper": [], "honest": []}
    rewards = {"dropper": 0, "honest": 0}
    for _ in range(60):
        for name in given:
            pool.wait(name)
        pool.assign()
        for name, ids in given.items():
            task = pool.collect(name, holding=[held[name]])
            if task is None:
                continue
            ids.append(task.id)
            is_easy = int(make_hash(f"{name} {task.id}"), 16) % 2
            if name == "dropper" and not is_easy:
                held[name] = task.lease
                continue
            rewards[name] += is_easy
            pool.decide(pool.submit(task), units=UNITS)
        pool.now += 1
        pool.expire()
    assert not {*given["dropper"]} & {*given["honest"]}  # a task that was dropped is planned under another number
    assert len({*given["dropper"]}) == len(given["dropper"])  # and is not drawn again by whoever dropped it
    dropper, honest = pool.node("dropper"), pool.node("honest")
    assert dropper.dropped > 0
    assert dropper.accepted * 4 < honest.accepted
    assert rewards["dropper"] * 4 < rewards["honest"]
