from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.chain.deployment import CONTRACTS, Deployment
from covey.chain.wallet import load_key
from covey.console import served_pool
from covey.errors import OperatorError
from covey.local.folder import create_pool_folder
from covey.local.plan import PoolPlan
from covey.protocol.ids import Hash
from tests.fakes.account import ALICE, BOB

pytestmark = pytest.mark.unit
FIRST, OTHER = (Hash("0x" + digit * 64) for digit in "12")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_pool_folder(tmp_path / "p", PoolPlan())
    contracts = dict.fromkeys([*CONTRACTS.values(), "token"], ALICE)
    Deployment(chain_id=5, start_block=0, start_hash=FIRST, **contracts).save(tmp_path / "p/chain/deployment.json")
    return tmp_path / "p"


def serve(monkeypatch: pytest.MonkeyPatch, folder: Path, **changes: object) -> None:
    """Let a coordinator answer for the folder's pool, apart from the changes."""
    operator = load_key(folder / "keys/operator.key").address
    values = {"pool": 1, "chain_id": 5, "operator": operator, "signer": operator}
    values["contracts"] = dict.fromkeys(CONTRACTS, ALICE)
    values["start_hash"] = None  # as that of a coordinator on a chain whose first block is unknown

    class Client:
        def __init__(self, url: str, signer: None, *, chain_id: int) -> None:
            pass

        async def __aenter__(self) -> "Client":
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def get_pool(self) -> SimpleNamespace:
            return SimpleNamespace(**(values | changes))

    monkeypatch.setattr(served_pool, "CoordinatorClient", Client)


async def answer(_: object) -> str:
    return "answer"


async def test_ask__the_folders_pool__is_named_and_answered(folder: Path, monkeypatch, capsys):
    serve(monkeypatch, folder)
    assert await served_pool.ask("http://c", folder, answer) == "answer"
    assert capsys.readouterr().err.startswith("http://c: pool 1 on chain 5, operated by 0x")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pool": 2}, "pool is 2, not 1"),
        ({"chain_id": 6}, "chain is 6, not 5"),
        ({"operator": BOB, "signer": BOB}, f"operator is {BOB}, not 0x"),
        ({"start_hash": OTHER}, f"first block is {OTHER}, not {FIRST}"),
        ({"contracts": {}}, f"EpochLedger is None, not {ALICE}"),
    ],
)
async def test_ask__another_pool__is_refused_unless_no_folder_is_named(folder: Path, monkeypatch, changes, said):
    serve(monkeypatch, folder, **changes)
    with pytest.raises(OperatorError, match="wrong_pool: the coordinator at http://c does not serve") as caught:
        await served_pool.ask("http://c", folder, answer)
    assert said in caught.value.message
    assert await served_pool.ask("http://c", None, answer) == "answer"
