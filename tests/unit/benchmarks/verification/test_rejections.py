"""Counts of rejections by window and by submission, with a replay of prepared distances."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.verification import rejections
from benchmarks.verification.rejections import RejectionCounter, split
from covey.protocol.params import VerificationParams
from covey.toploc.proofs import Distances
from validator.replay import RolloutDistances

pytestmark = pytest.mark.unit


def make_distances(tokens: int, *, mismatches: Sequence[int] = (), lost: int = 0, finished: bool = True) -> Any:
    """Make a rollout whose windows have the given exponent mismatches; its first `lost` tokens lose by 100."""
    windows = tuple(
        Distances(sign_exponent_mismatches=count, mantissa_mean=0.0, mantissa_median=0.0, mantissa_rest=0.0)
        for count in mismatches
    )
    margins = np.zeros(tokens, np.float32)
    margins[:lost] = 100
    return RolloutDistances(windows=windows, margins=margins, deviations=np.zeros(tokens), finished=finished)


def make_counter(monkeypatch: pytest.MonkeyPatch, *submissions: list[Any], ends_well: bool = True) -> RejectionCounter:
    """Make a counter to whose validator each submission is a list of prepared distances."""
    worker: Any = SimpleNamespace(build_submissions=lambda *_: submissions, params=None)
    monkeypatch.setattr(rejections, "measure", lambda rollouts, *_: rollouts)
    monkeypatch.setattr(RejectionCounter, "ends_well", lambda *_: ends_well)
    engine: Any = None
    return RejectionCounter("test", worker, engine, VerificationParams())


def test_split__two_windows_of_a_finished_rollout__only_the_last_is_finished() -> None:
    both = make_distances(40, mismatches=(0, 1), lost=33)
    first, last = split(both)
    assert [each.windows for each in (first, last)] == [both.windows[:1], both.windows[1:]]
    assert (first.tokens, last.tokens, first.finished, last.finished) == (32, 8, False, True)
    assert last.margins.tolist() == [100] + [0] * 7


def test_count_windows__short_and_long__count_under_their_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    submission = [make_distances(72, mismatches=(0, 0, 0), lost=1), make_distances(8, mismatches=(128,))]
    counter = make_counter(monkeypatch, submission)
    counter.count_windows("found", [], [], short="short")
    assert dict(counter.counts) == {"found": [1, 2], "short": [1, 2]}
    assert dict(counter.reasons["found"]) == {"TOKEN_MARGIN": 1, "MISSED": 1}
    assert dict(counter.reasons["short"]) == {"PROOF": 1, "MISSED": 1}


def test_count_submissions__one_window_beyond__rejects_its_submission_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, forged = [make_distances(32, mismatches=(0,))], [make_distances(32, mismatches=(128,))]
    counter, seen = make_counter(monkeypatch, honest, forged), []
    counter.count_submissions("found", [], [], seen.append)
    assert counter.counts["found"] == [1, 2]
    assert seen == [honest, forged]


def test_count_submissions__false_end__is_rejected_without_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    counter, seen = make_counter(monkeypatch, [make_distances(32, mismatches=(0,))], ends_well=False), []
    counter.count_submissions("found", [], [], seen.append)
    assert (counter.counts["found"], counter.reasons["found"], seen) == ([1, 1], {"FALSE_TERMINATION": 1}, [])


def test_count_honest__rejected_work__counts_windows_and_the_submission(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = [make_distances(40, mismatches=(0, 0))], [make_distances(40, mismatches=(128, 0), lost=2)]
    counter = make_counter(monkeypatch, good, bad)
    counter.count_honest([], [], prefix="exact_", match="matched")
    assert dict(counter.counts) == {
        "exact_honest_windows": [4, 4],
        "exact_honest_submissions": [2, 2],
        "exact_false_rejects": [2, 4],  # one window, and its submission
        "exact_false_slashes": [1, 2],
        "matched": [78, 80],
    }
    assert "test: honest work was rejected" in capsys.readouterr().out
