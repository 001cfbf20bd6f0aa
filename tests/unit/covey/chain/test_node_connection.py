"""web3 and eth-account are loaded when a chain is used, and by nothing before. test_json_rpc.py tests the requests."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from covey.chain.node_connection import read_retry_after

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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(None, 0), ("30", 30), (" 5 ", 5), ("9" * 20, 60), ("-1", 0), ("soon", 0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0)],
)
def test_read_retry_after__forms__are_seconds_of_at_most_a_minute(text: str | None, seconds: float):
    assert read_retry_after(text) == seconds


def test_read_retry_after__date__is_the_time_until_it():
    text = format_datetime(datetime.now(UTC) + timedelta(seconds=40), usegmt=True)
    assert 38 <= read_retry_after(text) <= 40
