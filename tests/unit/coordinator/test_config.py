from pathlib import Path

import pytest

from coordinator.config import CoordinatorConfig
from covey.errors import OperatorError

pytestmark = pytest.mark.unit


def load(url: str) -> CoordinatorConfig:
    values = {"home": "h", "pool": 1, "deployment": "d.json", "key_file": "k", "database_url": url}
    return CoordinatorConfig.load(None, values, {})


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("mysql://me:secret@host/covey", "database_url: mysql is not a supported database; use postgresql+psycopg://"),
        ("postgresql+psycopg2://host/covey", "postgresql+psycopg2 is not a supported database"),
        ("postgres://host/covey", "postgres is not a supported database"),
        ("covey.sqlite3", "the text is not a supported database"),
        ("postgresql://me:secret@host:port/covey", "database_url: Port could not be cast to integer"),
    ],
)
def test_load__database_that_is_not_supported__is_refused_without_its_password(url: str, what: str):
    with pytest.raises(OperatorError) as caught:
        load(url)
    assert caught.value.code == "bad_settings"
    assert what in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    "url", ["postgresql://me@host/covey", "postgresql+psycopg://me@[::1]:5433/covey", "sqlite:///f"]
)
def test_load__database_that_is_supported__is_taken(url: str):
    assert load(url).database == url


def test_load__no_database__is_sqlite_in_the_home():
    assert load("").database == f"sqlite:///{Path('h') / 'coordinator.sqlite3'}"
