"""The taskset of tests/data/verifiers_taskset, and the Python with verifiers."""

from pathlib import Path

import pytest

from covey.environments.base import EnvironmentSpec
from covey.environments.kinds.verifiers.verifiers_process import find_interpreter
from covey.errors import OperatorError

FOLDER = Path(__file__).parents[2] / "data/verifiers_taskset"
DATA_HASH = "0xac19ba47befe7b0d636ff21735e0161c774b0d14473e33159633483fcb3f7775"


def require_interpreter() -> Path:
    """Return that Python, or skip the test with the reason."""
    try:
        return find_interpreter(None)
    except OperatorError as error:
        pytest.skip(str(error))


def build_spec(**options: object) -> EnvironmentSpec:
    return EnvironmentSpec(kind="verifiers", options={"taskset": "arithmetic-tasks", "data_hash": DATA_HASH} | options)
