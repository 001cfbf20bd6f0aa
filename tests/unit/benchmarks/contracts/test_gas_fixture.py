"""What the fixture of gas signs and builds; `make gas` runs all of it on Anvil."""

from types import SimpleNamespace
from typing import Any

import pytest
from eth_utils.crypto import keccak

from benchmarks.contracts.gas_fixture import CONTRIBUTORS, GasFixture, make_hash
from covey.chain.json_rpc import Call
from covey.errors import ProtocolError, TransientError
from covey.protocol.ids import Address

pytestmark = pytest.mark.unit

CALL = Call(to=Address("0x" + "11" * 20), data=b"\x01\x02", label="EpochLedger.post")


class FakeClient:
    """A node that mines each transaction with the next of some gas figures, and answers nothing else."""

    def __init__(self, *gas: int, is_success: bool = True, is_mined: bool = True) -> None:
        self._gas, self._is_success, self._is_mined = list(gas), is_success, is_mined
        self.sent: list[dict[str, Any]] = []

    def request(self, method: str, transaction: dict[str, Any]) -> str:
        if method == "eth_estimateGas":
            return hex(21_000)
        assert method == "eth_sendTransaction"
        self.sent.append(transaction)
        return "0x" + "22" * 32

    def find_mined(self, _: str) -> Any:
        return SimpleNamespace(is_success=self._is_success, gas_used=self._gas.pop(0)) if self._is_mined else None


def make_fixture(client: FakeClient) -> GasFixture:
    fixture = GasFixture.__new__(GasFixture)
    fixture.client, fixture.gas, fixture.first = client, {}, {}  # type: ignore[assignment]
    return fixture


def test_send__two_calls__keep_the_first_and_the_last_gas() -> None:
    client = FakeClient(92_409, 58_629)
    fixture = make_fixture(client)
    assert [fixture.send("operator", CALL) for _ in range(2)] == [92_409, 58_629]
    assert (fixture.gas, fixture.first) == ({"EpochLedger.post": 58_629}, {"EpochLedger.post": 92_409})
    assert client.sent[0] == {
        "from": fixture.address("operator"),
        "to": CALL.to,
        "data": "0x0102",
        "value": "0x0",
        "gas": hex(42_000),
    }


@pytest.mark.parametrize(
    ("client", "error", "code"),
    [
        (FakeClient(1, is_success=False), ProtocolError, "reverted"),
        (FakeClient(is_mined=False), TransientError, "not_mined"),
    ],
)
def test_send__reverted_or_never_mined__is_an_error(client: FakeClient, error: type[Exception], code: str) -> None:
    fixture = make_fixture(client)
    with pytest.raises(error, match=code):
        fixture.send("operator", CALL)
    assert fixture.gas == {}


def test_address__parties__differ_and_stay() -> None:
    fixture = make_fixture(FakeClient())
    addresses = [fixture.address(f"payee-{i}") for i in range(CONTRIBUTORS)]
    assert len(set(addresses)) == CONTRIBUTORS
    assert addresses[0] == fixture.address("payee-0")


def test_make_hash__text__is_its_keccak() -> None:
    assert make_hash("work 1") == "0x" + keccak(text="work 1").hex()
