import pytest

from covey.chain.fee_settings import FeeSettings
from covey.chain.fees import GWEI, FeeLimits, Fees, compute_cost
from covey.chain.json_rpc import Call
from covey.chain.outbox import Attempt, Entry, Intent, IntentState
from covey.chain.wallet import wallet_from_key
from covey.errors import OperatorError, TransientError

pytestmark = pytest.mark.unit

ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
LIMITS = FeeLimits(max_fee=100, max_priority_fee=10, max_spend=1000)


def make_attempt(max_fee: int, priority_fee: int) -> Attempt:
    return Attempt(hash="0x", raw=b"", max_fee=max_fee, priority_fee=priority_fee)


def test_of__settings__are_wei():
    settings = FeeSettings(max_fee_gwei=1.5, max_priority_gwei=0.001, max_spend_per_day=0.25)
    assert FeeLimits.of(settings) == FeeLimits(max_fee=1_500_000_000, max_priority_fee=10**6, max_spend=25 * 10**16)
    assert FeeLimits.of(FeeSettings()) == FeeLimits(max_fee=500 * GWEI, max_priority_fee=100 * GWEI, max_spend=None)


@pytest.mark.parametrize("name", ["max_fee_gwei", "max_priority_gwei", "max_spend_per_day"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_settings__no_positive_number__is_refused(name: str, value: float):
    with pytest.raises(OperatorError, match=name):
        FeeSettings.load(None, {name: value}, {})


@pytest.mark.parametrize(
    ("base_fee", "priority_fee", "max_fee", "offered"),
    [(20, 5, 45, 5), (20, 10**18, 50, 10), (60, 5, 100, 5), (100, 5, 100, 5), (0, 0, 0, 0)],
)
def test_choose__any_word_of_the_node__stays_below_the_ceilings(
    base_fee: int, priority_fee: int, max_fee: int, offered: int
):
    assert LIMITS.choose(base_fee=base_fee, priority_fee=priority_fee) == Fees(max_fee=max_fee, priority_fee=offered)


def test_choose__base_fee_above_the_ceiling__waits():
    with pytest.raises(TransientError, match=r"fee_too_high: the chain's base fee is 1\.01e-07 gwei"):
        LIMITS.choose(base_fee=101, priority_fee=1)


@pytest.mark.parametrize(
    ("max_fee", "priority_fee", "raised"),
    [
        (40, 4, Fees(max_fee=51, priority_fee=6)),
        (90, 4, Fees(max_fee=100, priority_fee=6)),
        (95, 4, None),
        (40, 10, None),
    ],
)
def test_raise_above__replaced_attempt__is_dearer_by_a_quarter_or_not_replaced(
    max_fee: int, priority_fee: int, raised: Fees | None
):
    assert LIMITS.raise_above(make_attempt(max_fee, priority_fee), Fees(max_fee=20, priority_fee=1)) == raised


def test_require_budget__more_than_a_days__waits():
    LIMITS.require_budget(cost=400, spent=600)
    FeeLimits().require_budget(cost=10**30, spent=10**30)
    with pytest.raises(TransientError, match="spend_limit"):
        LIMITS.require_budget(cost=401, spent=600)


def test_compute_cost__attempts__is_the_value_and_the_gas_of_the_dearest():
    wallet = wallet_from_key(b"\x11" * 32)
    fields = {"type": 2, "chainId": 1, "nonce": 0, "to": ALICE, "data": b"", "value": 7, "gas": 21_000}
    attempts = [
        Attempt(hash=signed.hash, raw=signed.raw, max_fee=fee, priority_fee=1)
        for fee in (30, 20)
        for signed in [wallet.sign_transaction(fields | {"maxFeePerGas": fee, "maxPriorityFeePerGas": 1})]
    ]
    call = Call(to=ALICE, data=b"", value=7, label="x")
    entry = Entry(
        intent=Intent(key="a", call=call), state=IntentState.SIGNED, nonce=0, attempts=tuple(attempts), offered_at=1,
        place=None, refusal=None, reason="",
    )  # fmt: skip
    assert compute_cost(entry) == 7 + 21_000 * 30
