import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.domain.scheduling import Candidate, PlannedTask, compute_drop_rate, count_tasks_to_plan, match
from tests.fakes.pool import make_params

pytestmark = pytest.mark.unit


def make_candidate(address: str, **changes: object) -> Candidate:
    values = {"accepted": 0, "dropped": 0, "cached_version": None}
    return Candidate(address=address, **(values | changes))


def pair(works: list[PlannedTask], nodes: list[Candidate]) -> list[tuple[int, str]]:
    return [(work.task, node.address) for work, node in match(works, nodes)]


candidates = st.lists(
    st.builds(
        Candidate,
        address=st.text("abc", min_size=1, max_size=4),
        accepted=st.integers(0, 50),
        dropped=st.integers(0, 50),
        cached_version=st.none() | st.integers(0, 3),
    ),
    max_size=6,
    unique_by=lambda c: c.address,
)


# -- pace


@pytest.mark.parametrize(
    ("step", "staleness", "packed", "unpacked", "in_flight", "tasks"),
    [
        (0, 0, 0, 0, 0, 2),
        (0, 2, 0, 0, 0, 6),
        (0, 0, 0, 2, 0, 1),
        (0, 0, 0, 0, 4, 0),
        (0, 1, 4, 0, 0, 2),
        (7, 1, 28, 2, 4, 1),
        (7, 1, 32, 4, 4, 0),
    ],
)
def test_count_tasks_to_plan__worked_by_hand__agrees(
    step: int, staleness: int, packed: int, unpacked: int, in_flight: int, tasks: int
):
    """Batches of 4 groups, tasks of 2: (step + 1 + staleness) x 4 groups in all."""
    found = count_tasks_to_plan(
        make_params(max_staleness=staleness),
        step=step,
        packed_groups=packed,
        unpacked_groups=unpacked,
        groups_in_flight=in_flight,
    )
    assert found == tasks


@given(
    step=st.integers(0, 1000),
    staleness=st.integers(0, 4),
    groups=st.lists(st.integers(0, 5000), min_size=3, max_size=3),
    tasks_per_step=st.integers(1, 8),
    groups_per_task=st.integers(1, 5),
    max_steps=st.none() | st.integers(1, 1200),
)
def test_count_tasks_to_plan__any_numbers__fills_the_pace_and_never_passes_it(
    step: int, staleness: int, groups: list[int], tasks_per_step: int, groups_per_task: int, max_steps: int | None
):
    params = make_params(
        max_staleness=staleness,
        groups_per_task=groups_per_task,
        groups_per_step=groups_per_task * tasks_per_step,
        max_steps=max_steps,
    )
    packed, unpacked, in_flight = (number * groups_per_task for number in groups)
    planned = count_tasks_to_plan(
        params, step=step, packed_groups=packed, unpacked_groups=unpacked, groups_in_flight=in_flight
    )
    batches = step + 1 + staleness if max_steps is None else min(step + 1 + staleness, max_steps)
    allowed, held = batches * params.groups_per_step, packed + unpacked + in_flight
    assert planned * groups_per_task == max(0, allowed - held)


# -- match


def test_match__fewer_tasks_than_nodes__serves_who_drops_least_then_who_has_the_policy():
    nodes = [
        make_candidate("dropper", accepted=1, dropped=2, cached_version=4),  # 2 of 4
        make_candidate("cold", cached_version=3),
        make_candidate("warm", cached_version=4),
        make_candidate("seldom", accepted=8, dropped=1, cached_version=4),  # 1 of 10
    ]
    assert pair([PlannedTask(7, 3), PlannedTask(8, 3), PlannedTask(9, 3)], nodes) == [
        (7, "warm"),
        (8, "cold"),
        (9, "seldom"),
    ]


def test_match__younger_policy_than_a_node_has__goes_to_others_and_older_work_to_it():
    nodes = [make_candidate(name, cached_version=have) for name, have in (("new", 4), ("newer", 5), ("old", 3))]
    assert pair([PlannedTask(7, 3), PlannedTask(8, 3), PlannedTask(9, 4)], nodes) == [
        (9, "newer"),
        (7, "new"),
        (8, "old"),
    ]
    assert pair([PlannedTask(7, 3), PlannedTask(8, 4), PlannedTask(9, 4)], nodes) == [
        (8, "newer"),
        (9, "new"),
        (7, "old"),
    ]
    assert pair([PlannedTask(8, 4)], nodes[2:]) == []
    assert pair([PlannedTask(8, 4)], [make_candidate("silent")]) == [(8, "silent")]


def test_match__more_tasks_than_nodes__gives_each_node_one():
    nodes = [make_candidate("a"), make_candidate("b")]
    assert pair([PlannedTask(1, 0), PlannedTask(2, 0), PlannedTask(3, 1)], nodes) == [(3, "a"), (1, "b")]


works = st.lists(
    st.builds(PlannedTask, task=st.integers(0, 99), version=st.integers(0, 3)), max_size=12, unique_by=lambda w: w.task
)


@given(tasks=works, nodes=candidates)
def test_match__any_input__leases_as_many_as_any_choice_could_to_those_who_can(
    tasks: list[PlannedTask], nodes: list[Candidate]
):
    pairs = match(tasks, nodes)
    assert len({work.task for work, _ in pairs}) == len(pairs) == count_most(tasks, nodes)
    for work, node in pairs:
        assert node.serves(work.version)
    assert len({node.address for _, node in pairs}) == len(pairs)


def count_most(tasks: list[PlannedTask], nodes: list[Candidate]) -> int:
    """A largest matching, by augmenting paths: a task takes a node whose holder finds another."""
    held: dict[int, PlannedTask] = {}

    def place(work: PlannedTask, tried: set[int]) -> bool:
        for i, node in enumerate(nodes):
            if i not in tried and node.serves(work.version):
                tried.add(i)
                if i not in held or place(held[i], tried):
                    held[i] = work
                    return True
        return False

    return sum(place(work, set()) for work in tasks)


@given(nodes=candidates)
def test_match__one_task__goes_to_the_least_drop_rate(nodes: list[Candidate]):
    pairs = pair([PlannedTask(1, 0)], nodes)
    assert bool(pairs) == bool(nodes)
    if pairs:
        (chosen,) = (node for node in nodes if node.address == pairs[0][1])
        assert compute_drop_rate(chosen.accepted, chosen.dropped) == min(
            compute_drop_rate(node.accepted, node.dropped) for node in nodes
        )


def test_compute_drop_rate__newcomer_and_dropper__are_told_apart():
    assert compute_drop_rate(0, 0) == 0.0
    assert compute_drop_rate(0, 1) == 0.5
    assert compute_drop_rate(6, 3) == pytest.approx(0.3)
