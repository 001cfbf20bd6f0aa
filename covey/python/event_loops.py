"""Calls of code that runs an event loop, from Python that may be in one already, as a notebook's cells are."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from covey.standalone.main_thread import MainThread

Result = TypeVar("Result")


def run_apart(call: Callable[[MainThread | None], Result]) -> Result:
    """Call a function here, or in a thread of its own if this thread is in a running event loop.

    Its argument is the main thread, which makes calls for it meanwhile. None if the function is called here, or if this
    is not the main thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call(None)
    if threading.current_thread() is threading.main_thread():
        main_thread = MainThread()
        return main_thread.run_apart(lambda: call(main_thread))
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(call, None).result()
