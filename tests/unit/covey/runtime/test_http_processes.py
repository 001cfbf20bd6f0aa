"""Processes that serve on one port; tests/integration/coordinator/test_api_processes.py has real ones."""

import asyncio
import multiprocessing

import pytest

from covey.errors import OperatorError
from covey.runtime.http import find_free_ports
from covey.runtime.http_processes import HttpProcesses

pytestmark = pytest.mark.integration


async def test_run__processes_end_as_soon_as_they_start__gives_up():
    (port,) = find_free_ports(1)
    processes = HttpProcesses(len, host="127.0.0.1", port=port, count=2)  # A socket has no length, so each fails.
    async with asyncio.timeout(300):
        with pytest.raises(OperatorError, match="processes_end"):
            await processes.run(asyncio.Event())
    assert multiprocessing.active_children() == []
