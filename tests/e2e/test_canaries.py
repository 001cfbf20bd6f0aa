"""Canaries in a real network: an honest validator rejects them, a lazy one is exposed, and nobody loses stake."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import TypeAdapter

import validator.enforcement
import validator.loop
from coordinator.api.routes import views
from coordinator.db.models import SubmissionRow
from coordinator.domain.nodes import count_strikes
from covey.chain.deployment import Deployment
from covey.chain.wallet import load_key
from covey.demo.cheats import QuantizedWeights
from covey.demo.demo_network import POOL, DemoNetwork
from covey.demo.participants import DemoOptions
from covey.network.policy_loader import PolicyLoader
from covey.protocol.api.public import SubmissionView
from covey.protocol.canaries import CanaryKind, compute_canary_commitment
from covey.protocol.eip712 import Domain, sign
from covey.protocol.messages import CanaryConsent
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Decision, Judgement, Reason
from tests.e2e.submitting import ShortParticipants, hand_in, list_submissions
from tests.e2e.walk import Walk, open_walk, take_judgement
from validator.checks import SubmissionClaim

pytestmark = [pytest.mark.e2e]
CANARIES = ("worker-1", "worker-2")


class WatchedParticipants(ShortParticipants):
    """A pool in which one validator decides, and two workers are canaries that should be rejected."""

    def _write(self, name: str, values: Mapping[str, Any]) -> Any:
        changed = dict(values)
        if name == "pool":
            changed["params"] = {**changed["params"], "quorum": 1}
        if name == "coordinator":
            changed["canaries"] = {self.get_address(each): self._consent(each) for each in CANARIES}
        return super()._write(name, changed)

    def _consent(self, worker: str) -> dict[str, str]:
        """Return the settings of a canary that should be rejected, with its contributor's signature."""
        deployment = Deployment.load(self.deployment)
        consent = CanaryConsent(pool=POOL, node=self.get_address(worker), kind=CanaryKind.REJECT)
        domain = Domain(chain_id=deployment.chain_id, contract=deployment.slashing_court)
        contributor = load_key(self.get_key_file(f"{worker}-contributor"))
        return {"verdict": "reject", "consent": sign(consent, domain, contributor)}


def accept_unseen(claim: SubmissionClaim, *_: object, **__: object) -> Judgement:
    """Accept without a check, as a lazy validator does."""
    return Judgement.accept(claim.receipt.units)


async def judge(walk: Walk, index: int) -> SubmissionRow:
    """Let only this validator take turns until the newest submission is decided."""

    async def turn() -> None:
        await take_judgement(walk.validators[index])

    await walk.until(lambda: list_submissions(walk)[-1].state is not SubmissionState.SUBMITTED, walk.run_jobs, turn)
    return list_submissions(walk)[-1]


def get_verdict(walk: Walk, receipt_hash: str) -> tuple[str, int, int]:
    """Return (validator, outcome, reason) of the revealed verdict."""
    with walk.coordinator.database.read() as repository:
        (verdict,) = [j.verdict for j in repository.get_submission(receipt_hash).turns if j.verdict]
    return verdict.validator, verdict.outcome, verdict.reason


@pytest.fixture
def weak_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add --force, without which a quorum of one is refused."""
    command = DemoNetwork.command

    def insist(network: DemoNetwork, *arguments: str, **how: Any) -> Any:
        return command(network, *arguments, *(("--force",) if arguments[:2] == ("pool", "create") else ()), **how)

    monkeypatch.setattr(DemoNetwork, "command", insist)


def list_public(walk: Walk) -> list[SubmissionView]:
    answer = views.list_submissions(walk.coordinator, 10)
    return TypeAdapter(list[SubmissionView]).validate_json(answer.body)


@pytest.mark.full
@pytest.mark.usefixtures("weak_terms")
async def test_walk__canaries__tell_the_lazy_validator_and_cost_nobody_stake(tmp_path):
    options = DemoOptions(steps=1, workers=3, cheats=0, max_staleness=0)
    async with open_walk(tmp_path / "net", options, participants=WatchedParticipants) as walk:
        honest, lazy, other = (each.network.wallet.address for each in walk.validators)
        await walk.publish()
        await walk.follow()
        for name in CANARIES:
            ctx = walk.workers[name]
            engine = QuantizedWeights(ctx.engine)
            loader = PolicyLoader(engine, ctx.network.policies, ctx.network.params.model)
            walk.workers[name] = dataclasses.replace(ctx, engine=engine, loader=loader)

        nodes = [await hand_in(walk, "worker-1")]
        submission = await judge(walk, 0)
        assert get_verdict(walk, submission.receipt_hash) == (honest, Decision.REJECT, Reason.PROOF)
        assert (submission.state, submission.reason, submission.units) == (SubmissionState.VOID, Reason.CANARY, 0)
        status = walk.get_status()
        assert {who: (v.canaries, v.missed) for who, v in status.validators.items() if v.judged} == {honest: (1, 0)}

        nodes.append(await hand_in(walk, "worker-2"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(validator.loop.verdicts, "judge", accept_unseen)
            missed = await judge(walk, 1)
        assert get_verdict(walk, missed.receipt_hash) == (lazy, Decision.ACCEPT, Reason.NONE)
        assert (missed.state, missed.reason, missed.units) == (SubmissionState.VOID, Reason.CANARY, 0)

        nodes.append(await hand_in(walk, "worker-3"))
        paid = await judge(walk, 2)
        assert (paid.state, paid.units) == (SubmissionState.ACCEPTED, paid.receipt_units)

        status = walk.get_status()
        scores = {who: (v.judged, v.canaries, v.missed) for who, v in status.validators.items() if v.judged}
        assert scores == {honest: (1, 1, 0), lazy: (1, 1, 1), other: (1, 0, 0)}
        shown = {view.node: view for view in list_public(walk)}
        assert [shown[node].kind for node in nodes] == [CanaryKind.REJECT, CanaryKind.REJECT, CanaryKind.ORDINARY]
        for view in shown.values():
            opened = compute_canary_commitment(view.receipt_hash, view.salt, CanaryKind(view.kind))
            assert opened == view.commitment

        for ctx in walk.validators:
            await validator.enforcement.cycle(ctx)
        await walk.follow()
        with walk.coordinator.database.read() as repository:
            assert repository.list_cases() == []
            rows = [repository.get_node(node) for node in nodes]
            strikes = [count_strikes(repository, row.contributor) for row in rows]
        assert [(row.suspended, row.accepted) for row in rows] == [("", 0), ("", 0), ("", 1)]
        assert strikes == [0, 0, 0]
        for participant in walk.network.participants.workers:
            contributor = walk.network.participants.get_address(participant.contributor)
            assert walk.network.contracts.stakes.locked_of(POOL, contributor) == 0
