"""Commands that end before their transaction is mined, and are repeated."""

from pathlib import Path

import pytest

from covey.chain import command_outbox
from covey.chain.command_outbox import send_durably
from covey.chain.fees import FeeLimits
from covey.chain.json_rpc import Call
from covey.chain.sender import Sender
from covey.errors import ProtocolError, TransientError
from tests.fakes.chain import ACCOUNT, FakeWallet, MemoryChain
from tests.unit.covey.chain.test_follower import DEPLOYMENT

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> MemoryChain:
    """A chain that mines while a command waits, unless `is_stopped`."""
    made = MemoryChain()
    made.is_stopped = False
    send = Sender.send_and_wait

    def send_and_wait(sender: Sender, key: str, call: Call) -> object:
        return send(sender, key, call, timeout_s=0.0 if made.is_stopped else 5.0, wait=lambda _: made.mine())

    monkeypatch.setattr(command_outbox.Sender, "send_and_wait", send_and_wait)
    return made


def send(chain: MemoryChain, effect: str) -> object:
    call = Call(to=ACCOUNT, data=effect.encode(), label=effect)
    return send_durably(chain, FakeWallet(), DEPLOYMENT, call, limits=FeeLimits())


def test_send__repeated_after_it_was_not_mined_in_time__happens_once(chain):
    chain.is_stopped = True
    for _ in range(2):
        with pytest.raises(TransientError, match="not_mined"):
            send(chain, "stake 5")
    chain.mine()
    send(chain, "stake 5")
    assert chain.list_effects() == ["stake 5"]


def test_send__same_command_long_after_an_unnoticed_success__happens_again(chain, monkeypatch):
    chain.is_stopped = True
    with pytest.raises(TransientError, match="not_mined"):
        send(chain, "stake 5")
    monkeypatch.setattr(command_outbox, "REPEAT_SECONDS", 0.0)
    with pytest.raises(TransientError, match="not_mined"):
        send(chain, "stake 5")  # It is not mined yet, so this goes on with it.
    chain.mine()
    chain.is_stopped = False
    send(chain, "stake 5")
    assert chain.list_effects() == ["stake 5", "stake 5"]


def test_send__another_command_first__finishes_the_earlier_one(chain):
    chain.is_stopped = True
    with pytest.raises(TransientError, match="not_mined"):
        send(chain, "stake 5")
    chain.is_stopped = False
    send(chain, "fund 7")
    assert chain.list_effects() == ["stake 5", "fund 7"]


def test_send__same_command_after_it_was_mined__happens_again(chain):
    for _ in range(2):
        send(chain, "stake 5")
    assert chain.list_effects() == ["stake 5", "stake 5"]


def test_send__contract_refuses__is_forgotten(chain, monkeypatch):
    def refuse(*_: object) -> int:
        raise ProtocolError("reverted", "ZeroAmount()")

    with monkeypatch.context() as patch:
        patch.setattr(chain, "estimate_gas", refuse)
        with pytest.raises(ProtocolError, match="ZeroAmount"):
            send(chain, "stake 0")
    send(chain, "fund 7")
    assert chain.list_effects() == ["fund 7"]
