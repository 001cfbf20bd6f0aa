"""Work that is not drawn whole: false text in half of its rows is found in the drawn rows, and a quorum rejects it."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from coordinator.domain import audit_draws
from covey.demo.participants import DemoOptions
from covey.protocol.evidence import Bundle
from covey.protocol.object_keys import build_evidence_key
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Decision, Reason
from tests.cheats.content import FalseTextInHalf
from tests.e2e.submitting import ShortParticipants, hand_in, judge_all
from tests.e2e.test_audit import audit
from tests.e2e.walk import open_walk

pytestmark = [pytest.mark.e2e]
ROWS = 17
"""Number of drawn rows of 32. At least one of them is false if 16 are, whatever the block draws."""


class UndrawnParticipants(ShortParticipants):
    """A pool that draws one submission in a hundred whole, that of a newcomer too. It is the least that deters."""

    def _write(self, name: str, values: Mapping[str, Any]) -> Any:
        if name == "pool":
            values["params"]["verification"] |= {"audit_rate": 0.01, "newcomer_submissions": 0, "audit_rows": ROWS}
        return super()._write(name, values)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no submission whole, whatever the block says."""
    monkeypatch.setattr(audit_draws, "is_audited", lambda *_: False)


@pytest.mark.usefixtures("undrawn")
async def test_walk__false_text_in_half_of_the_rows__a_row_turn_orders_the_replay_that_rejects_it(tmp_path):
    options = DemoOptions(steps=1, workers=2, cheats=0, max_staleness=0)
    async with open_walk(tmp_path / "net", options, participants=UndrawnParticipants) as walk:
        await walk.publish()
        await walk.follow()
        honest = await hand_in(walk, "worker-1")
        cheat = await hand_in(walk, "worker-2", FalseTextInHalf())
        rows = await judge_all(walk)
        assert (rows[honest].state, rows[honest].audited) == (SubmissionState.ACCEPTED, False)
        assert (rows[cheat].state, rows[cheat].reason, rows[cheat].audited) == (
            SubmissionState.REJECTED,
            Reason.TOKEN_MARGIN,
            True,
        )
        with walk.coordinator.database.read() as repository:
            turns = repository.get_submission(rows[cheat].receipt_hash).turns
            found = [(turn.full, turn.verdict) for turn in turns if turn.verdict is not None]
        assert [full for full, _ in found].count(True) == 2, "a quorum"
        assert {verdict.outcome for _, verdict in found} == {Decision.REJECT}
        verdict = next(verdict for full, verdict in found if not full)

        store = walk.coordinator.config.store
        data = walk.coordinator.store.get(build_evidence_key(1, verdict.evidence_hash), max_bytes=1 << 16)
        bundle = Bundle.from_bytes(data)
        assert (bundle.draw, len(set(bundle.rows)), bundle.full) == (rows[cheat].draw, ROWS, False)
        relay = ("--relay", walk.coordinator.config.relays[0], "--policies", str(tmp_path / "policies"))
        done = await audit(walk, verdict.evidence_hash, store, *relay, "--json")
        report = json.loads(done.stdout)
        assert (done.returncode, report["agrees"], report["rows"]) == (0, True, list(bundle.rows))
        assert len(report["rollouts"]) == ROWS
        lie = tmp_path / "lie.json"
        lie.write_bytes(data.replace(bundle.draw.encode(), b"0x" + b"12" * 32))
        done = await audit(walk, str(lie), store, *relay)
        assert done.stderr.startswith("covey: bad_evidence: the bundle contains a false value: its list of rows")
