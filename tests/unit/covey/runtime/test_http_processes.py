"""Processes that serve on one port; tests/integration/coordinator/test_api_processes.py has real ones."""

import asyncio
import multiprocessing
import socket

import pytest

from covey.errors import OperatorError
from covey.runtime.http import find_free_ports
from covey.runtime.http_processes import HttpProcesses

pytestmark = pytest.mark.integration


def _refuse(_: int, listener: socket.socket) -> None:
    raise OperatorError("bad_store", "the store cannot be opened", fix="Correct the setting store_url")


async def test_run__error_that_no_start_cures__ends_all_and_is_raised():
    (port,) = find_free_ports(1)
    processes = HttpProcesses(_refuse, host="127.0.0.1", port=port, count=2)
    async with asyncio.timeout(300):
        with pytest.raises(OperatorError, match="bad_store"):
            await processes.run(asyncio.Event())
    assert multiprocessing.active_children() == []
