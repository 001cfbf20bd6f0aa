"""How tests send on a real chain: an outbox, calls that mint tokens, and blocks on demand."""

from threading import Event

from covey.chain.json_rpc import Call
from covey.chain.outbox import Intent, IntentState
from covey.chain.sender import Sender


def mint(chain, amount: int) -> Call:
    return chain.contracts.token.mint(chain.address("arbiter"), amount)


def balance(chain) -> int:
    return chain.contracts.token.balance_of(chain.address("arbiter"))


def make_sender(chain, store, *, client=None, **options) -> Sender:
    options = {
        "chain_id": chain.deployment.chain_id,
        "watch_seconds": 0.0,
        "stuck_seconds": 5.0,
        "lag_seconds": 5.0,
    } | options
    return Sender(client or chain.client, chain.wallets["deployer"], store, **options)


def put(store, key: str, call: Call) -> None:
    store.put(Intent(key=key, call=call))


def drain(sender: Sender) -> None:
    """Pump until nothing is pending. Even a node that mines at once responds shortly before it has mined."""
    pause = Event()
    for _ in range(6000):
        if sender.pump() == 0:
            return
        pause.wait(0.01)
    raise AssertionError("something is still pending after a minute")


def pump_until_mined(sender: Sender, store, key: str) -> None:
    """Pump until an intent is mined. Even a node that mines at once responds shortly before."""
    pause = Event()
    for _ in range(6000):
        sender.pump()
        if store.find(key).state is IntentState.MINED:
            return
        pause.wait(0.01)
    raise AssertionError(f"{key} was not mined within a minute")


def stop_mining(chain) -> None:
    chain.client.request("evm_setAutomine", False)


def mine(chain, blocks: int = 1) -> None:
    for _ in range(blocks):
        chain.client.request("evm_mine")
