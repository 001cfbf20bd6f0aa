from types import SimpleNamespace

import pytest

from covey import cli
from covey.chain.structs import EpochRecord
from covey.cli import waiting
from covey.cli.rewards import Waiting, sum_waiting
from covey.errors import TransientError
from covey.protocol.api.public import RewardView
from tests.fakes.account import ALICE, HASH, RECORD, SIGNER, FakeHistory, invoke, runner

pytestmark = pytest.mark.unit

URL = ["--coordinator-url", "http://c"]
EARNED = RewardView(epoch=1, contributor=SIGNER.address, cumulative=45, proof=())
CHAIN = ["--pool", "1", "--deployment", "d.json", *URL]


def post(epoch, final_at):
    record = EpochRecord(header_hash=HASH, reward_root=HASH, epoch=epoch, final_at=final_at, reward=1, cumulative=46)
    return SimpleNamespace(epoch=epoch, record=record)


def hand_in(state="ACCEPTED", *, units=4, epoch=None, reason="none", contributor=SIGNER.address):
    return SimpleNamespace(contributor=contributor, state=state, units=units, epoch=epoch, reason=reason)


WORK = [
    hand_in("SUBMITTED", units=100),
    hand_in("ACCEPTED", units=1),
    hand_in("ACCEPTED", units=2, epoch=3),
    hand_in("SETTLED", units=4, epoch=2),
    hand_in("SETTLED", units=8),  # its epoch was disabled
    hand_in("SETTLED", units=16, epoch=1),
    hand_in("SETTLED", units=32, epoch=2, reason="proof"),
    hand_in("REJECTED", units=64, reason="proof"),
    hand_in("VOID", units=128, reason="late"),
]


@pytest.mark.parametrize(
    ("final", "unfinal", "expected"),
    [
        (1, [post(2, 150), post(3, 160)], Waiting(1, 15, {None: 9, 3: 2, 2: 4}, 150)),
        (1, [post(3, 160)], Waiting(1, 15, {None: 9, 3: 2, 2: 4}, 160)),
        (1, [post(4, 170)], Waiting(1, 15, {None: 9, 3: 2, 2: 4}, None)),
        (2, [], Waiting(1, 11, {None: 9, 3: 2}, None)),
        (None, [post(1, 140), post(2, 150)], Waiting(1, 31, {None: 9, 3: 2, 2: 4, 1: 16}, 140)),
    ],
)
def test_sum_waiting__by_hand__is_what_no_final_epoch_holds(final, unfinal, expected):
    assert sum_waiting(WORK, unfinal, final=final) == expected


def test_json__rewards__what_was_earned_less_what_was_claimed(opened):
    opened.reward = EARNED
    opened.submissions = [*WORK, hand_in(contributor=ALICE)]
    opened.history.unfinal = [post(2, 150)]
    assert invoke("rewards", "show", "--pool", "1", *URL) == {
        "contributor": SIGNER.address,
        "pending": 1,
        "accepted": 45,  # 15 units at 3
        "next_final_at": 150,
        "epoch": 1,
        "earned": 45,
        "claimed": 30,
        "claimable": 15,
    }
    assert invoke("rewards", "claim", "--pool", "1", *URL) == {"claimed": 15, "transaction": HASH}
    assert opened.sent == ["claim"]
    assert opened.calls == [(1, RECORD, SIGNER.address, 45, ())], "the record is the chain's"


def test_rewards_show__for_people__has_symbol_and_time(opened):
    opened.reward = EARNED
    opened.submissions, opened.history.unfinal = WORK, [post(2, 150)]
    lines = dict(
        line.split(maxsplit=1)
        for line in runner.invoke(cli.app, ["rewards", "show", *CHAIN, "--key-file", "k"]).stdout.splitlines()
    )
    assert lines.pop("next_final_at").endswith(", in 50 s")
    assert lines == {
        "contributor": SIGNER.address,
        "pending": "1",
        "accepted": "4.5 CVT",
        "epoch": "1",
        "earned": "4.5 CVT",
        "claimed": "3 CVT",
        "claimable": "1.5 CVT",
    }


def test_rewards_show__coordinator_away__says_what_the_chain_says(opened):
    opened.history.unfinal = [post(2, 150)]
    away = ["--coordinator-url", "http://away"]
    found = invoke("rewards", "show", "--pool", "1", *away)
    assert (found["claimed"], found["epoch"], found["next_final_at"]) == (30, 1, 150)
    assert {found[name] for name in ("pending", "accepted", "earned", "claimable")} == {None}
    result = runner.invoke(cli.app, ["rewards", "show", *CHAIN, "--key-file", "k", *away])
    assert result.exit_code == 0
    assert "claimable  unknown" in result.stdout
    assert "3 CVT" in result.stdout
    assert "coordinator_unreachable: no?[2J answer" in result.stderr


@pytest.mark.parametrize(
    "lie",
    [
        EARNED.model_copy(update=lie)
        for lie in ({"cumulative": 46}, {"proof": (HASH,)}, {"epoch": 2}, {"contributor": ALICE})
    ],
)
def test_rewards__proof_that_the_chain_refutes__is_neither_shown_nor_claimed(opened, lie):
    opened.reward = lie
    result = runner.invoke(cli.app, ["rewards", "show", *CHAIN, "--key-file", "k"])
    assert "earned  unknown" in result.stdout
    assert "bad_reward: " in result.stderr
    result = runner.invoke(cli.app, ["rewards", "claim", *CHAIN, "--key-file", "k"])
    assert (result.exception.code, opened.sent) == ("bad_reward", [])


def test_rewards_show__contributor_by_address__needs_no_key(opened):
    opened._wallet, opened.submissions = None, [hand_in("SUBMITTED", contributor=ALICE)]
    found = invoke("rewards", "show", "--contributor", ALICE, "--pool", "1", *URL, key=False)
    assert (found["contributor"], found["pending"], found["earned"]) == (ALICE, 1, 0)
    result = runner.invoke(cli.app, ["rewards", "show", *CHAIN])
    assert result.exception.code == "no_key"
    assert "--contributor" in result.exception.fix


def test_rewards__no_epoch_that_pays__nothing_is_earned_and_claim_says_until_when(opened, monkeypatch):
    monkeypatch.setattr(FakeHistory, "find_claimable", lambda *_, now: None)
    found = invoke("rewards", "show", "--pool", "1", *URL)
    assert (found["epoch"], found["earned"], found["next_final_at"]) == (None, 0, None)
    shown = runner.invoke(cli.app, ["rewards", "show", *CHAIN, "--key-file", "k"]).stdout
    rows = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert (rows["epoch"], rows["next_final_at"], rows["earned"]) == ("none", "none", "0 CVT")
    result = runner.invoke(cli.app, ["rewards", "claim", *CHAIN, "--key-file", "k"])
    assert result.exception.code == "not_final"
    assert "posted the next epoch, which becomes final 100 s later" in result.exception.fix
    opened.history.unfinal = [post(0, 150)]
    result = runner.invoke(cli.app, ["rewards", "claim", *CHAIN, "--key-file", "k"])
    assert result.exception.fix.startswith("Claim when epoch 0 is final: ")
    assert result.exception.fix.endswith(", in 50 s")
    assert opened.sent == []


def test_rewards_claim__nothing_earned__is_said(opened):
    result = runner.invoke(cli.app, ["rewards", "claim", *CHAIN, "--key-file", "k"])
    assert result.exception.code == "no_reward"
    assert opened.sent == []


@pytest.fixture
def answers(opened, monkeypatch):
    """Return a list of the coordinator's next answers, which are given without a pause."""
    monkeypatch.setattr(waiting, "MIN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "MAX_PAUSE_SECONDS", 0.0)
    given = []

    async def answer(*_):
        found = given.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(opened, "_get_reward", answer)
    return given


AWAY = TransientError("coordinator_unreachable", "http://c did not answer")


def test_rewards_claim__wait__outlasts_an_unreachable_coordinator(opened, answers):
    answers += [None, AWAY, AWAY, None, None, EARNED]
    opened.history.unfinal = [post(2, 150)]
    result = runner.invoke(cli.app, ["rewards", "claim", "--wait", *CHAIN, "--key-file", "k"])
    assert (result.exit_code, opened.sent, answers) == (0, ["claim"], [])
    lines = result.stderr.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "Claim when epoch 2 is final",
        "coordinator_unreachable",
        "Claim when epoch 2 is final",
    ]
    assert "claimed  1.5 CVT" in result.stdout


@pytest.mark.parametrize(("last", "code"), [(AWAY, "coordinator_unreachable"), (None, "no_reward")])
def test_rewards_claim__wait__ends_at_its_deadline(opened, answers, monkeypatch, last, code):
    monkeypatch.setattr(waiting, "SPARE_SECONDS", -200.0)  # the two windows are 200 s
    answers += [last, last]
    result = runner.invoke(cli.app, ["rewards", "claim", "--wait", *CHAIN, "--key-file", "k"])
    assert (result.exception.code, opened.sent) == (code, [])
