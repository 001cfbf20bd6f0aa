"""A hard rejection goes to court only with signatures of a quorum, and is executed only after the veto window."""

import asyncio
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from covey.chain.json_rpc import Call
from covey.chain.outbox import Intent
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.chain.structs import Accusation, OnChainCaseState
from covey.devnet import deploy
from covey.errors import OperatorError
from covey.protocol import eip712
from covey.protocol.api.common import ReceiptBody, VerdictBody
from covey.protocol.api.validator import HardCase
from covey.protocol.messages import Receipt, Verdict
from covey.protocol.verdict import Decision, Reason, Severity
from covey.runtime.cycle import CycleResult
from tests.fakes.pool import make_address, make_hash
from tests.fakes.tools import DOMAIN
from validator import enforcement

pytestmark = pytest.mark.unit
DAY = 86_400
NODE = deploy.derive_wallet("test", "node")
VALIDATORS = [deploy.derive_wallet("test", f"validator-{i}") for i in range(3)]
RECEIPT = Receipt(
    pool=1, task=7, lease=9, node=NODE.address, contributor=make_address("c"), policy_version=0,
    work_key=make_hash("w"), groups=2, units=9, deadline=2**62,
)  # fmt: skip
RECEIPT_HASH = eip712.compute_struct_hash(RECEIPT)


def build_case(signers=VALIDATORS[:2], *, node=NODE, deadline=2**62) -> HardCase:
    verdicts = [
        Verdict(
            pool=1, receipt_hash=RECEIPT_HASH, work_key=RECEIPT.work_key, validator=wallet.address,
            outcome=Decision.REJECT, reason=Reason.PROOF, severity=Severity.HARD, units=0,
            evidence_hash=make_hash("e"), deadline=deadline,
        )
        for wallet in signers
    ]  # fmt: skip
    return HardCase(
        receipt=ReceiptBody.of(RECEIPT),
        signature=eip712.sign(RECEIPT, DOMAIN, node),
        verdicts=tuple(VerdictBody.of(verdict) for verdict in verdicts),
        signatures=tuple(eip712.sign(v, DOMAIN, wallet) for v, wallet in zip(verdicts, signers, strict=True)),
    )


def enforce(
    case: HardCase,
    *,
    state: OnChainCaseState = OnChainCaseState.NONE,
    now: int = 100,
    bonds: tuple[int, ...] = (50, 50, 50),
    named: int = 3,
    outbox: SqliteOutbox | None = None,
) -> list[tuple]:
    """Return the calls that were sent. The veto window of a known case ends at 100. A validator needs a bond of 50."""
    sent: list[tuple] = []
    accusation = Accusation(
        receipt_hash=RECEIPT_HASH, pool=1, node=NODE.address, contributor=make_address("c")
    )  # fmt: skip
    court = SimpleNamespace(
        get_case=lambda asked: SimpleNamespace(
            state=state if asked == accusation else OnChainCaseState.NONE, veto_until=100
        ),
        propose=lambda _, __, verdicts, signatures: ([v.validator for v in verdicts], len(signatures)),
        execute=lambda asked: asked,
        lapse=lambda asked: asked,
    )
    bonded = {wallet.address: bond for wallet, bond in zip(VALIDATORS, bonds, strict=True)}
    stakes = SimpleNamespace(lasting_bond_of=lambda _, who: bonded.get(who, 0))
    pools = SimpleNamespace(is_validator=lambda _, who: who in [wallet.address for wallet in VALIDATORS[:named]])
    network = SimpleNamespace(
        contracts=SimpleNamespace(court=court, pools=pools, stakes=stakes),
        chain=SimpleNamespace(get_block=lambda _: SimpleNamespace(timestamp=now)),
        receipt_domain=DOMAIN,
        terms=SimpleNamespace(quorum=2, validator_bond=50, unbond_window=40),
        pool=1,
    )
    outbox = SqliteOutbox(":memory:") if outbox is None else outbox
    ctx = SimpleNamespace(network=network, outbox=outbox)
    ctx.send = lambda key, call: sent.append((key, call)) if outbox.find(key) is None else None
    enforcement.enforce(ctx, case)
    return sent


@pytest.mark.parametrize(("now", "span"), [(79, 1), (80, 2), (119, 2), (120, 3)])
def test_enforce__quorum_of_signatures__proposes_once_per_span_with_a_key_that_names_the_receipt(now: int, span: int):
    """The court may have reached its cap for this contributor within 40 s, so the case is proposed in the next span."""
    signers = [wallet.address for wallet in VALIDATORS[:2]]
    ((key, call),) = enforce(build_case(), now=now)
    assert (key.rpartition("/")[0], call) == (f"propose/{RECEIPT_HASH}/{span}", (signers, 2))


def test_enforce__other_signers_than_those_of_a_refused_proposal__proposes_again():
    """A signer that withdrew its bond made the court refuse the case, and the third signature never reached it."""
    first, second = (enforce(build_case(VALIDATORS), bonds=bonds) for bonds in ((50, 50, 49), (49, 50, 50)))
    assert first[0][0] != second[0][0]
    assert [call[0] for _, call in second] == [[VALIDATORS[1].address, VALIDATORS[2].address]]


async def test_watch_power__one_wrong_answer__does_not_stop_the_validator(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(enforcement, "DOUBT_SECONDS", 0.0)
    answers: list[bool] = []

    def require_power(_: object) -> None:
        if not answers.pop(0):
            raise OperatorError("bond_too_small", "no bond", fix="Bond")

    monkeypatch.setattr(enforcement, "require_power", require_power)
    ctx = SimpleNamespace(network=None, stop=asyncio.Event())
    answers[:] = [False] * enforcement.LOOKS + [True]
    assert await enforcement.watch_power(ctx) is CycleResult.IDLE
    answers[:] = [False] * (enforcement.LOOKS + 1)
    with pytest.raises(OperatorError, match="bond_too_small"):
        await enforcement.watch_power(ctx)


@pytest.mark.parametrize(
    "case",
    [
        build_case(VALIDATORS[:1]),
        build_case([VALIDATORS[0], VALIDATORS[0]]),
        build_case([VALIDATORS[0], NODE]),
        build_case(node=VALIDATORS[0]),
        build_case().model_copy(update={"signatures": build_case().signatures[:1]}),
        build_case().model_copy(update={"signatures": build_case().signatures[::-1]}),
        build_case([]),
        build_case(deadline=100),
    ],
    ids=[
        "one",
        "one twice",
        "not an active validator",
        "other signer",
        "signature missing",
        "exchanged",
        "none",
        "expired",
    ],
)
def test_enforce__what_the_court_would_refuse__proposes_nothing(case: HardCase):
    assert enforce(case) == []


@pytest.mark.parametrize(
    ("bonds", "named", "spoken"), [((50, 49, 50), 3, (0, 2)), ((49, 50, 49), 3, ()), ((50, 50, 50), 2, (0, 1))]
)
def test_enforce__verdict_without_power__is_left_out(bonds: tuple[int, ...], named: int, spoken: tuple[int, ...]):
    """A single verdict of a validator without its bond or its seat would make the court refuse the whole proposal."""
    sent = enforce(build_case(VALIDATORS), bonds=bonds, named=named)
    assert [call for _, call in sent] == ([([VALIDATORS[i].address for i in spoken], 2)] if spoken else [])


@pytest.mark.parametrize(
    ("now", "sent"),
    [(99, []), (100, ["execute"]), (99 + DAY, ["execute"]), (100 + DAY, ["lapse"]), (101 + DAY, ["lapse"])],
)
def test_enforce__case_that_is_locked__is_executed_after_the_veto_window_and_lapses_a_day_later(now: int, sent: list):
    calls = enforce(build_case(), state=OnChainCaseState.LOCKED, now=now)
    assert [key for key, _ in calls] == [f"{verb}/{RECEIPT_HASH}/{now // 600}" for verb in sent]


@pytest.mark.parametrize(("now", "verb"), [(600, "execute"), (600 + DAY, "lapse")])
def test_enforce__locked_case_whose_earlier_call_was_refused_for_good__is_tried_again(now: int, verb: str):
    """A token that was paused for longer than a refusal takes to be final must not free the stake of a cheat."""
    outbox = SqliteOutbox(":memory:")
    earlier = f"{verb}/{RECEIPT_HASH}/{now // 600 - 1}"
    outbox.put(Intent(key=earlier, call=Call(to=make_address("court"), data=b"", label="execute")))
    outbox.record_reverted(earlier, "EnforcedPause()", None)
    for seconds in (0, 599):
        calls = enforce(build_case(), state=OnChainCaseState.LOCKED, now=now + seconds, outbox=outbox)
        assert [key for key, _ in calls] == [f"{verb}/{RECEIPT_HASH}/{now // 600}"]
    outbox.close()


@pytest.mark.parametrize(("now", "warned"), [(99 + DAY // 2, False), (100 + DAY // 2, True), (99 + DAY, True)])
def test_enforce__half_of_the_grace_is_over__says_that_the_case_is_about_to_lapse(now: int, warned: bool):
    with capture_logs() as logs:
        enforce(build_case(), state=OnChainCaseState.LOCKED, now=now)
    assert ["about to lapse" in line["event"] for line in logs] == ([True] if warned else [])


@pytest.mark.parametrize("state", [OnChainCaseState.VETOED, OnChainCaseState.SLASHED, OnChainCaseState.LAPSED])
def test_enforce__case_that_is_over__sends_nothing(state: OnChainCaseState):
    assert enforce(build_case(), state=state, now=10**6) == []
