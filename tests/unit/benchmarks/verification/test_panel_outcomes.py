"""Fates of a cheat's submission, worked out by hand from docs/protocol.md, as the coordinator's code decides them."""

import pytest

from benchmarks.verification.panel_outcomes import Behavior, Fate, JudgedSubmission, compute_fates
from tests.fakes.pool import make_params

pytestmark = pytest.mark.unit
H, L, BAD = Behavior.HONEST, Behavior.LAZY, Behavior.HOSTILE
ALONE = JudgedSubmission(audited=False, confirmed=False, is_visible=True)
PAIR = JudgedSubmission(audited=False, confirmed=True, is_visible=True)
WHOLE = JudgedSubmission(audited=True, confirmed=False, is_visible=True)
CAUGHT = {Fate.CASE: 1.0}


def compute(*behaviors: Behavior, quorum: int = 2, kind: JudgedSubmission = WHOLE) -> dict[Fate, float]:
    """Return the fates of one kind of submission."""
    return dict(compute_fates(make_params(quorum=quorum), behaviors)[kind])


@pytest.mark.parametrize("kind", [ALONE, PAIR, WHOLE])
@pytest.mark.parametrize("third", [H, Behavior.BONDLESS, Behavior.LEAVING, Behavior.SILENT, Behavior.MUTE])
def test_compute_fates__two_honest_validators__bring_every_visible_cheat_to_court(
    third: Behavior, kind: JudgedSubmission
):
    """Another validator is asked in the place of one that is silent, has no bond or takes its bond away."""
    assert compute(H, H, third, kind=kind) == CAUGHT


def test_compute_fates__nothing_to_see__is_paid():
    fates = compute_fates(make_params(), (H, H, H))
    hidden = {kind.audited: dict(found) for kind, found in fates.items() if not kind.is_visible}
    assert hidden == {False: {Fate.UNDRAWN: 1.0}, True: {Fate.REPLAYED: 1.0}}


@pytest.mark.parametrize("third", [BAD, L])
def test_compute_fates__one_of_three_accepts_all__hides_only_what_it_judges_alone(third: Behavior):
    assert compute(H, H, third, kind=ALONE) == pytest.approx({Fate.CASE: 2 / 3, Fate.UNDRAWN: 1 / 3})
    assert compute(H, H, third, kind=PAIR) == CAUGHT
    assert compute(H, H, third, kind=WHOLE) == CAUGHT


def test_compute_fates__hostile_and_lazy_of_three__are_the_quorum():
    """A third of the drawn rows goes to the honest one, whose rejection orders a replay that the two others accept."""
    assert compute(H, BAD, L, kind=ALONE) == pytest.approx({Fate.REPLAYED: 1 / 3, Fate.UNDRAWN: 2 / 3})
    assert compute(H, BAD, L, kind=PAIR) == pytest.approx({Fate.REPLAYED: 2 / 3, Fate.UNDRAWN: 1 / 3})
    assert compute(H, BAD, L, kind=WHOLE) == {Fate.REPLAYED: 1.0}


@pytest.mark.parametrize(
    ("behaviors", "quorum", "fates"),
    [
        ((H, BAD, L), 3, {Fate.VOID: 1.0}),  # Nobody is a quorum, so that nobody loses stake.
        ((H, H, BAD, L), 3, {Fate.VOID: 1.0}),
        ((H, BAD, Behavior.SILENT), 2, {Fate.VOID: 1.0}),
        ((H, BAD, Behavior.BONDLESS), 2, {Fate.VOID: 1.0}),
        ((H, BAD), 2, {Fate.VOID: 1.0}),
        ((H, Behavior.BONDLESS), 2, {Fate.VOID: 1.0}),
        ((H, Behavior.LEAVING), 2, {Fate.UNSIGNED: 1.0}),  # It signs, and its signature has no power in court.
    ],
)
def test_compute_fates__of_work_that_is_drawn_whole__depend_on_who_is_a_quorum(
    behaviors: tuple[Behavior, ...], quorum: int, fates: dict[Fate, float]
):
    assert compute(*behaviors, quorum=quorum) == fates


def test_compute_fates__hostile_and_lazy_of_five__hide_what_they_judge_alone_or_as_a_pair():
    fates = compute_fates(make_params(quorum=3), (H, H, H, BAD, L))
    assert fates[ALONE] == pytest.approx({Fate.CASE: 0.6, Fate.UNDRAWN: 0.4})
    assert fates[PAIR] == pytest.approx({Fate.CASE: 0.9, Fate.UNDRAWN: 0.1})
    assert fates[WHOLE] == CAUGHT
