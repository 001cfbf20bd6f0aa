import json
import sys

import pytest

from covey.chain import node_connection  # noqa: F401 (it imports web3)
from covey.runtime.recursion import RECURSION_LIMIT

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("text", ["[" * 99_000, '{"a":' * 99_000])
def test_json__nested_deeply__raises_and_does_not_end_the_process(text: str) -> None:
    assert sys.getrecursionlimit() == RECURSION_LIMIT
    with pytest.raises(RecursionError):
        json.loads(text)
