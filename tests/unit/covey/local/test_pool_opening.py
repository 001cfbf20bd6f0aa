from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.chain.wallet import load_key, save_key
from covey.local.pool_opening import Opening

pytestmark = pytest.mark.unit


def make_opening(folder: Path, *, trainer: str, bonds: dict[str, int]) -> Opening:
    """Return an opening in which the operator adds 100 to the escrow and 10 to its bond.

    `bonds` are amounts by the name of a validator's key.
    """
    return Opening(
        pool=None,
        operator=SimpleNamespace(wallet=SimpleNamespace(address=make_key(folder, "operator"))),
        terms=SimpleNamespace(trainer=make_key(folder, trainer)),
        validators=(),
        params=None,
        token=None,
        escrow=100,
        operator_bond=10,
        absent_bonds={},
        validator_bonds={folder / f"{name}.key": amount for name, amount in bonds.items() if make_key(folder, name)},
    )


def make_key(folder: Path, name: str) -> str:
    """Write the key file NAME.key and return its address. Operator and validator-1 are one account."""
    file = folder / f"{name}.key"
    if not file.exists():
        save_key(file, (b"1" if name == "operator" else name[-1].encode()) * 32)
    return load_key(file).address


@pytest.mark.parametrize("bonds", [{"validator-1": 4, "validator-2": 3}, {"validator-3": 5}, {}])
@pytest.mark.parametrize("trainer", ["operator", "trainer", "validator-2"])
def test_costs__one_account_in_two_roles__pays_for_both(tmp_path: Path, trainer: str, bonds: dict[str, int]):
    costs = make_opening(tmp_path, trainer=trainer, bonds=bonds).costs
    own = 110 + bonds.get("validator-1", 0)
    assert costs[make_key(tmp_path, "operator")] == own
    assert sum(costs.values()) == 110 + sum(bonds.values())
    assert make_key(tmp_path, trainer) in costs
