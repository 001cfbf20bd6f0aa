"""Names that `covey` exports, and what importing it costs."""

import subprocess
import sys

import pytest

import covey
import covey.python

pytestmark = pytest.mark.unit


def test_names__those_of_the_python_surface__are_exported():
    assert set(covey._NAMES) == set(covey.python.__all__)
    assert all(getattr(covey, name) is getattr(covey.python, name) for name in covey.python.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = covey.nothing


def test_import__module_from_the_package__does_not_load_the_python_surface():
    code = "from covey import rollouts, slots; import sys; print('covey.python' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
