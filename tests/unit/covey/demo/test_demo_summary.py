from types import SimpleNamespace

import pytest

from covey.chain import events
from covey.chain.amounts import TokenUnit
from covey.demo.demo_summary import Record, build_summary, describe_worker, is_accepted, list_failures
from covey.demo.participants import DemoOptions, Participants
from covey.demo.presets import DEFAULT
from covey.demo.progress_view import DemoScreen, describe_learning, find_stage
from covey.protocol.api.public import PauseView, StatusView, StepView, SubmissionView

pytestmark = pytest.mark.unit

HASH = "0x" + "ab" * 32
CVT = TokenUnit(1, "CVT")
FILTERED = {"groups_sampled": 0, "groups_live": 0, "is_capped": False}


def make_status(**changes):
    values = {
        "pool": 1,
        "time": 1_700_000_000,
        "block": 5,
        "ended": True,
        "settled": True,
        "step": 0,
        "steps": (StepView(step=0, state="TRAINED", record_hash=HASH, groups_accepted=4, **FILTERED),),
        "tasks": {},
        "submissions": {},
        "reasons": {},
        "nodes": {},
        "validators": {},
        "execution_contracts": {},
        "epochs": (),
    }
    return StatusView(**(values | changes))


def make_submission(node, *, state="SETTLED", reason="none", version=0):
    return SubmissionView(
        receipt_hash=HASH,
        task=1,
        node=node,
        contributor=node,
        policy_version=version,
        state=state,
        reason=reason,
        units=5,
        epoch=0,
        commitment=HASH,
        salt=HASH,
        kind=0,
        evidence_hashes=(),
    )


@pytest.fixture
def participants(tmp_path):
    return Participants(tmp_path / "demo", DemoOptions(steps=3, workers=1, cheats=1))


@pytest.fixture
def good(participants):
    """A demo in which all went well."""
    honest, cheat = (worker.node for worker in participants.workers)
    summary = {
        "reward": [0.1, 0.2, 0.5, 0.9],
        "policies": {"0": HASH},
        "slashed": {cheat: HASH},
        "honest_slashed": 0,
        "claimed": 9,
        "cumulative": 9,
    }
    submissions = [make_submission(honest), make_submission(cheat, state="REJECTED", reason="proof")]
    return summary, make_status(), submissions


def test_list_failures__all_went_well__none(participants, good):
    summary, status, submissions = good
    assert list_failures(summary, participants, status=status, submissions=submissions) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": [0.1, 0.9, 0.9]}, "rewards were measured at only 3 steps"),
        ({"reward": [0.5, 0.5, 0.5, 0.65]}, "the reward rose by 0.050, but 0.094 is required"),
        ({"slashed": {}}, "cheats that were not slashed: cheat-1"),
        ({"honest_slashed": 1}, "an honest worker was slashed"),
        ({"claimed": 8}, "the claimed amount differs from what the ledger owes"),
        ({"policies": {"0": "0x" + "00" * 32}}, "a policy that was used is not on chain"),
    ],
)
def test_list_failures__one_thing_wrong__named_alone(participants, good, changes, message):
    summary, status, submissions = good
    assert list_failures(summary | changes, participants, status=status, submissions=submissions) == [message]


def test_list_failures__eight_steps__a_quarter_is_required(tmp_path, good):
    summary, status, submissions = good
    participants = Participants(tmp_path / "long", DemoOptions(steps=8, workers=1, cheats=1))
    summary = summary | {"reward": [0.5] * 6 + [0.7] * 3, "slashed": {participants.workers[1].node: HASH}}
    found = list_failures(summary, participants, status=status, submissions=submissions)
    assert found == ["the reward rose by 0.200, but 0.250 is required"]


def test_list_failures__paused_by_the_trainer__says_why(participants, good):
    summary, _, submissions = good
    status = make_status(pause=PauseView(since=1, reason="its trainer has paused it"))
    found = list_failures(summary, participants, status=status, submissions=submissions)
    assert found == ["the pool is paused: its trainer has paused it"]


def test_describe_learning__some_steps__rewards_and_the_shares_of_the_last_batch():
    summary = {"reward": [0.125, 0.3, 0.75], "live_share": [0.25, 0.5], "truncated_share": [0.5, 0.03125]}
    assert describe_learning(summary) == (
        "reward 0.125 at first, 0.750 at the end; of the last batch 50% in live groups, 3% truncated"
    )
    assert describe_learning(summary | {"live_share": []}) == "no step was trained"


def test_list_failures__unsettled_or_lost_work__named(participants, good):
    summary, _, submissions = good
    assert list_failures(summary, participants, status=make_status(settled=False), submissions=submissions) == [
        "some work was not settled"
    ]
    lost = [*submissions, make_submission(participants.workers[0].node, state="VOID", reason="late")]
    assert list_failures(summary, participants, status=make_status(), submissions=lost) == [
        "1 submissions of honest workers were rejected"
    ]
    ghost = [*submissions, make_submission(participants.workers[0].node, version=7)]
    assert list_failures(summary, participants, status=make_status(), submissions=ghost) == [
        "a policy that was used is not on chain"
    ]


def test_list_failures__nothing_happened__no_crash(participants):
    empty = {"reward": [], "policies": {}, "slashed": {}, "honest_slashed": 0, "claimed": 0, "cumulative": 0}
    assert len(list_failures(empty, participants, status=make_status(steps=()), submissions=[])) == 3


def test_build_summary__by_hand(participants):
    honest, cheat = participants.workers
    record = Record(rewards={1: 0.5, 0: 0.1}, slashed={cheat.node: HASH}, live={0: 0.75}, truncated={0: 0.25})
    record.claimed[participants.get_address(honest.contributor)] = 4
    contracts = SimpleNamespace(
        ledger=SimpleNamespace(get_settlement=lambda pool: SimpleNamespace(posted=10)),
        policies=SimpleNamespace(steps_of=lambda pool: 2, policy_of=lambda pool, step: f"hash {step}"),
    )
    submissions = [make_submission(honest.node), make_submission(cheat.node, reason="proof")]
    found = build_summary(
        record,
        participants,
        contracts,
        status=make_status(reasons={"proof": 1}),
        submissions=submissions,
        seconds=1.26,
        processes=9,
    )
    assert found == {
        "environment": DEFAULT,
        "steps": 1,
        "seconds": 1.3,
        "reward": [0.1, 0.5],
        "live_share": [0.75],
        "truncated_share": [0.25],
        "accepted": 1,
        "rejected": {"proof": 1},
        "slashed": {cheat.node: HASH},
        "honest_slashed": 0,
        "claimed": 4,
        "cumulative": 10,
        "policies": {"0": "hash 0", "1": "hash 1"},
        "processes": 9,
    }


def make_event(kind, **fields):
    made = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def test_record__events__first_slash_and_all_claims():
    record = Record()
    for number in (1, 2):
        record.note(make_event(events.CaseExecuted, node="n", transaction_hash=f"tx {number}"))
        record.note(make_event(events.RewardClaimed, contributor="c", amount=number))
    record.note(make_event(events.PolicyPublished))
    assert record.slashed == {"n": "tx 1"}
    assert record.claimed == {"c": 3}


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("ACCEPTED", "none", True),
        ("SETTLED", "none", True),
        ("SETTLED", "proof", False),
        ("SUBMITTED", "none", False),
        ("VOID", "late", False),
    ],
)
def test_is_accepted(state, reason, expected):
    assert is_accepted(make_submission("0x" + "11" * 20, state=state, reason=reason)) is expected


def test_describe_worker__a_cheat__reasons_and_transaction(participants):
    cheat = participants.workers[1]
    record = Record(slashed={cheat.node: HASH})
    record.claimed[participants.get_address(cheat.contributor)] = 15
    line = describe_worker(cheat, participants, record, [make_submission(cheat.node, reason="proof")] * 2, CVT)
    assert "cheat-1 (quantized)" in line
    assert "accepted   0  rejected 2 for proof  claimed 1.5 CVT" in line
    assert line.endswith(f"slashed in {HASH}")


STEP = StepView(step=0, state="OPEN", record_hash=HASH, groups_accepted=0, **FILTERED)


@pytest.mark.parametrize(
    ("changes", "published", "stage"),
    [
        ({"step": 0}, 2, "the coordinator is reading the chain"),
        ({"step": -1, "steps": ()}, 0, "the trainer is publishing the first policy"),
        ({"steps": (STEP.model_copy(update={"state": "READY"}),)}, 1, "the trainer is training and publishing"),
        ({"steps": (STEP,), "tasks": {"ASSIGNED": 1, "PENDING": 1}}, 1, "workers are generating"),
        ({"steps": (STEP,), "tasks": {"PENDING": 1}}, 1, "tasks are waiting for a worker"),
        ({"steps": (STEP,), "submissions": {"SUBMITTED": 1}}, 1, "validators are judging"),
        ({"steps": (STEP,)}, 1, "accepted groups are being packed into a batch"),
    ],
)
def test_find_stage__what_the_step_waits_for(changes, published, stage):
    assert find_stage(make_status(**changes), published=published) == stage


def test_screen__lines__once_each_and_the_summary_whole(capsys):
    screen = DemoScreen(3)
    for _ in range(2):
        screen.say_once("slash", "cheat-1 was slashed")
    screen.show_step(1, 0.5, make_status(submissions={"ACCEPTED": 3, "SUBMITTED": 2}))
    summary = {
        "reward": [0.1, 0.9],
        "live_share": [0.5],
        "truncated_share": [0.25],
        "accepted": 5,
        "rejected": {"proof": 2},
        "claimed": 7,
        "cumulative": 8,
        "slashed": {},
        "policies": {"0": HASH},
        "steps": 1,
        "seconds": 2.5,
        "processes": 9,
    }
    screen.show_summary(summary, ["worker line"], ["it did not learn"], CVT)
    out = capsys.readouterr().out
    assert out.count("cheat-1 was slashed") == 1
    assert "step   1/3  reward 0.500 " + "#" * 15 in out
    assert "3 judged" in out
    for word in (
        "0:0.100  1:0.900",
        "worker line",
        "rejected 2 for proof",
        "claimed 0.7 CVT of 0.8 CVT",
        HASH,
        "reward 0.100 at first, 0.900 at the end; of the last batch 50% in live groups, 25% truncated",
        "FAILED it did not learn",
    ):
        assert word in out
    assert "ok: the model learned" not in out
    screen.show_summary(summary | {"slashed": {"0xA": HASH, "0xB": HASH}}, [], [], CVT)
    assert "ok: the model learned, 2 cheats were slashed, honest work was paid" in capsys.readouterr().out
    screen.show_summary(summary | {"slashed": {"0xA": HASH}}, [], [], CVT)
    assert "1 cheat was slashed" in capsys.readouterr().out
    screen.show_summary(summary | {"claimed": 0}, [], [], CVT)
    assert "ok: the model learned, nobody was slashed, there was no work to pay for" in capsys.readouterr().out


def test_screen__slow_step__named_after_eight_seconds(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("covey.demo.progress_view.time.monotonic", lambda: now[0])
    screen = DemoScreen(3)
    for second, step in ((0, 1), (7, 1), (9, 1), (10, 1), (18, 2), (25, 2)):
        now[0] = 100.0 + second
        screen.show_stage("validators are judging", step)
    assert capsys.readouterr().out.count("step 1 is slow: validators are judging") == 1
