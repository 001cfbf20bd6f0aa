"""web3 and eth-account are loaded when a chain is used, and by nothing before. test_json_rpc.py tests the requests."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[4]
CODE = """
import sys
import covey.chain.contracts, covey.chain.events, covey.chain.follower, covey.chain.sender, covey.chain.wallet
import covey.cli, covey.engines.hf.engine, tests.unit.conftest
import coordinator.app, trainer.app, validator.app, worker.app
from covey.chain.json_rpc import ChainClient
from covey.errors import TransientError

def list_loaded():
    return [name for name in ("web3", "eth_account", "requests") if name in sys.modules]

client = ChainClient("http://127.0.0.1:9", timeout_s=1.0)
before = list_loaded()
try:
    client.chain_id()
except TransientError:
    print(before, list_loaded())
"""


def test_import__roles_commands_and_engines__load_no_web3_until_a_chain_is_used():
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "[] ['web3', 'eth_account', 'requests']\n"
