from pathlib import Path

import pytest

from covey.chain.chain_profile import ChainProfile
from covey.chain.fees import GWEI, FeeLimits
from covey.errors import OperatorError

pytestmark = pytest.mark.unit

PROFILES = Path(__file__).resolve().parents[4] / "configs" / "chains"
CHAINS = {"base-sepolia.toml": 84532, "arbitrum-sepolia.toml": 421614}


def test_profiles__shipped__are_the_two_chains():
    assert {path.name: ChainProfile.load(path, environment={}).chain_id for path in PROFILES.iterdir()} == CHAINS


@pytest.mark.parametrize("name", CHAINS)
def test_profiles__shipped__bound_fees_and_wait_for_blocks(name: str):
    profile = ChainProfile.load(PROFILES / name, environment={})
    limits = FeeLimits.of(profile)
    assert limits.max_priority_fee < limits.max_fee <= 5 * GWEI
    assert limits.max_spend is not None
    assert profile.confirmations > 0
    assert profile.finality == "safe"


def test_profile__unknown_setting__refused(tmp_path: Path):
    (tmp_path / "c.toml").write_text('name = "A"\nchain_id = 1\nconfirmation = 3\n')
    with pytest.raises(OperatorError, match=r"bad_settings.*confirmation"):
        ChainProfile.load(tmp_path / "c.toml", environment={})
