"""The cheats that show each row of docs/threats.md, and the tests that show rows which no judgement answers."""

from tests.cheats.base import Cheat, Elsewhere
from tests.cheats.content import CONTENT
from tests.cheats.engines import ENGINES
from tests.cheats.files import FILES
from tests.cheats.numbers import NUMBERS
from tests.cheats.slots import SLOTS

COORDINATOR = "tests/unit/coordinator/domain"
INTAKE = "tests/integration/coordinator"


class ManyIdentities(Elsewhere):
    """Runs many nodes with one purse. Each needs stake, and each is a newcomer."""

    row = 11
    shown_by = (
        f"{INTAKE}/test_auth.py::test_register__more_nodes_than_the_stake_backs__is_refused",
        f"{COORDINATOR}/test_audit_draws.py::test_is_replayed__newcomer__whatever_the_rate",
        f"{COORDINATOR}/test_nodes__many_identities.py::test_assign__many_identities__get_no_more_than_one_of_their_stake",
    )


class HackedGrader(Elsewhere):
    """Submits text that is not an answer but earns a reward."""

    row = 14
    shown_by = ("tests/unit/covey/environments/test_registry__junk.py::test_reward__junk__is_zero",)


class TwoReceipts(Elsewhere):
    """Signs two receipts for one slot, and shows them to different parties."""

    row = 15
    shown_by = (
        f"{INTAKE}/test_api.py::test_submit__second_receipt_for_the_lease__is_equivocation_or_duplicate",
        "tests/integration/chain/test_court.py::test_equivocation__two_files_for_one_lease__slashes_at_once",
        "tests/contracts/Equivocation.t.sol::test_WhenTwoReceiptsContradict_ItSlashesAtOnceAndOnce",
        "tests/contracts/Equivocation.t.sol::test_WhenInTheOtherOrder_ItSlashesToo",
    )


class NeverDelivers(Elsewhere):
    """Takes every lease it can get and does nothing."""

    row = 16
    shown_by = (
        f"{COORDINATOR}/test_tasks.py::test_expire_leases__collected_and_dropped__is_planned_anew_and_costs_a_pause",
        f"{COORDINATOR}/test_scheduling.py::test_match__one_task__goes_to_the_least_drop_rate",
        f"{COORDINATOR}/test_nodes__many_identities.py::test_step__node_that_only_takes_leases__does_not_stall_it",
    )


class ForgedUnseen(Elsewhere):
    """Invents log-probabilities in work that nobody replays."""

    row = 39
    shown_by = ("tests/unit/trainer/test_loop.py::test_learn__forged_logprobs_in_unreplayed_work__have_no_effect",)


class InventedUnseen(Elsewhere):
    """Invents rewards and prompts, which an accomplice among the validators accepts."""

    row = 39
    shown_by = (
        "tests/unit/trainer/data/test_regrading.py::test_cycle__invented_rewards_that_nobody_replayed__teach_nothing",
        "tests/unit/trainer/data/test_regrading.py"
        "::test_cycle__row_that_does_not_fit_its_slot__its_submission_is_left_out_and_learning_continues",
    )


class RedrawsPrompts(Elsewhere):
    """Drops the leases whose prompts it does not like."""

    row = 40
    shown_by = (
        f"{COORDINATOR}/test_tasks.py::test_expire_leases__often_dropped__is_a_strike_from_the_fourth_on",
        f"{COORDINATOR}/test_nodes__many_identities.py::test_lease__dropped_to_redraw__gains_nothing",
    )


class FailsEveryValidator(Elsewhere):
    """Submits input on which no validator reaches a verdict."""

    row = 41
    shown_by = (
        f"{COORDINATOR}/test_judging.py::test_tally__no_quorum_in_twice_the_quorum__is_void_unslashed_and_ends",
        "tests/e2e/test_unknown.py::test_walk__replay_fails__is_judged_elsewhere_or_void",
    )


class RotatedKeys(Elsewhere):
    """Registers one node key after the other, for the best of many prompts and seeds."""

    row = 52
    shown_by = (
        f"{COORDINATOR}/test_nodes__one_person.py"
        "::test_remove__keys_that_are_rotated_with_their_leases__count_as_drops_of_the_contributor",
        f"{COORDINATOR}/test_nodes__one_person.py"
        "::test_assign__node_that_registered_after_the_policy__waits_while_an_earlier_one_asks",
    )


class BondlessValidator(Elsewhere):
    """Judges without its bond, so that the court refuses the case."""

    row = 53
    shown_by = (
        f"{COORDINATOR}/test_panel__bonds.py::test_claim__validator_without_its_bond__gets_no_turn",
        f"{COORDINATOR}/test_panel__bonds.py"
        "::test_seek_signatures__bond_withdrawn_after_the_rejection__a_third_validator_signs",
    )


class SlowValidators(Elsewhere):
    """Two validators of one operator that let their turns lapse, or commit in the last second of their time."""

    row = 58
    shown_by = (
        f"{COORDINATOR}/test_panel.py::test_dispatch__three_validators_two_take_turns_and_let_them_lapse__comes_to_an_end",
        f"{COORDINATOR}/test_judging.py::test_record_commit__in_the_last_fifth_of_the_time__is_counted",
    )


JUDGED: tuple[type[Cheat], ...] = (*ENGINES, *SLOTS, *CONTENT, *NUMBERS, *FILES)
ELSEWHERE: tuple[type[Elsewhere], ...] = (
    ManyIdentities, HackedGrader, TwoReceipts, NeverDelivers, ForgedUnseen, InventedUnseen, RedrawsPrompts,
    FailsEveryValidator, RotatedKeys, BondlessValidator, SlowValidators,
)  # fmt: skip
DISHONEST = range(1, 17)
"""The rows of dishonest work."""
ROWS: dict[int, tuple[type[Cheat] | type[Elsewhere], ...]] = {
    row: (*(each for each in JUDGED if each.row == row), *(each for each in ELSEWHERE if each.row == row))
    for row in (*DISHONEST, 39, 40, 41, 52, 53, 58)
}
