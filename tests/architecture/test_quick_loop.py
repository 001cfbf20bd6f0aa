"""A unit test of a small module starts without the large libraries, so that `make unit` answers at once."""

import subprocess
import sys

import pytest

from tests.architecture.tree import ROOT

pytestmark = pytest.mark.unit

LARGE = ("celery", "eth_account", "fastapi", "sqlalchemy", "torch", "transformers", "web3")
CODE = f"""
import sys, pytest
code = pytest.main(["-q", "-p", "no:cacheprovider", "tests/unit/covey/test_errors.py"])
print("loaded", [name for name in {LARGE} if name in sys.modules], int(code))
"""


def test_unit_test__of_a_small_module__loads_no_large_library():
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "loaded [] 0", done.stdout
