"""A guard for tests of the coordinator: nobody calls the chain's node, the store or the broker while writing.

Such a call may take seconds, and everybody who writes would wait for it.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection

from coordinator.db.database import Database
from coordinator.queue.celery_app import BackgroundJobTrigger, JobTrigger
from covey.chain.json_rpc import ChainClient
from covey.object_store import ObjectStore

OUTSIDE: tuple[tuple[type, str], ...] = (
    (ChainClient, "ask_node"),
    (ObjectStore, "get"),
    (ObjectStore, "put_named_by_content"),
    (ObjectStore, "delete"),
    (JobTrigger, "trigger"),
    (BackgroundJobTrigger, "trigger"),
)
"""Methods that must not be called within a write transaction."""


_writing = threading.local()
_calls: list[str] = []


@pytest.fixture(autouse=True)
def calls_while_writing() -> Iterator[list[str]]:
    """Fail the test if one of `OUTSIDE` was called within a write transaction of the same thread."""
    _calls.clear()
    yield _calls
    assert _calls == [], "these were called within a write transaction"


def _note_writing(begin: Callable[..., Any]) -> Callable[..., Any]:
    @contextmanager
    def note(database: Database) -> Iterator[Connection]:
        with begin(database) as connection:
            _writing.is_on = True
            try:
                yield connection
            finally:
                _writing.is_on = False

    return note


def _note_calls(owner: type, name: str) -> Callable[..., Any]:
    method = getattr(owner, name)

    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        if getattr(_writing, "is_on", False):
            _calls.append(f"{owner.__name__}.{name}")
        return method(*arguments, **named)

    return call


# Databases live longer than a test, so all that this process opens are watched.
Database._begin = _note_writing(Database._begin)  # type: ignore[method-assign]
for _owner, _name in OUTSIDE:
    setattr(_owner, _name, _note_calls(_owner, _name))
