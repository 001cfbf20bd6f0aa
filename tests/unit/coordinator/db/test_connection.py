from types import SimpleNamespace

import pytest
from sqlalchemy.exc import OperationalError

from coordinator.db import connection
from covey.errors import OperatorError, TransientError

pytestmark = pytest.mark.unit
SERVER = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: FATAL:  '


def build_engine(message: str) -> SimpleNamespace:
    """Return an engine whose server answers each connection with an error."""

    def connect() -> None:
        raise OperationalError("", None, Exception(message))

    return SimpleNamespace(connect=connect)


@pytest.mark.parametrize(
    "message",
    [
        'role "nobody" does not exist',
        'database "covey" does not exist',
        'password authentication failed for user "covey"',
        'no pg_hba.conf entry for host "10.0.0.1", user "covey", database "covey", no encryption',
    ],
)
def test_require_admitted__server_refuses_its_user__is_for_the_operator(message: str):
    with pytest.raises(OperatorError) as caught:
        connection.require_admitted(build_engine(SERVER + message))
    assert caught.value.code == "database_refused"
    assert f"refuses the connection: {message}." in caught.value.message


@pytest.mark.parametrize("message", ["the database system is starting up", "sorry, too many clients already"])
def test_require_admitted__server_is_busy__is_transient(message: str):
    with pytest.raises(TransientError, match="database_unavailable"):
        connection.require_admitted(build_engine(SERVER + message))


def test_build__driver_is_not_installed__says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'psycopg'")

    monkeypatch.setattr(connection, "create_engine", fail)
    with pytest.raises(OperatorError, match=r"no_psycopg: .*pip install 'covey\[postgres\]'"):
        connection.build("postgresql://me@host/covey")


def test_build__url_without_a_driver__uses_psycopg():
    engine = connection.build("postgresql://me@host/covey")
    assert (engine.url.drivername, engine.driver) == ("postgresql+psycopg", "psycopg")


def test_build__options_of_the_server__end_the_session_of_a_host_that_is_gone():
    options = connection.build("postgresql://me@host/covey?options=-c%20work_mem%3D8MB").url.query["options"]
    assert "-c tcp_keepalives_idle=15 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3" in options
    assert str(options).endswith("-c work_mem=8MB")
