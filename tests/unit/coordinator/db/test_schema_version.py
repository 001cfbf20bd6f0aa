"""The tables: those of the models, made by whoever starts first, and changed by `migrate` alone."""

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import inspect, text
from typer.testing import CliRunner

from coordinator.cli import coordinator
from coordinator.db import schema_version
from coordinator.db.database import Database
from coordinator.db.models import Base
from covey.errors import OperatorError
from tests.fakes.databases import open_schema

pytestmark = pytest.mark.unit
PREPARE = """
import sys
from coordinator.db.database import Database
print("ready", flush=True)
sys.stdin.readline()
Database(sys.argv[1]).prepare()
"""
STARTING = 3
"""Processes of a coordinator that start together: the API, the jobs, and one that was started twice."""
NEWEST = max(path.name for path in (schema_version.MIGRATIONS / "versions").glob("0*.py"))[:4]
ANOTHER = f"""
import sqlalchemy as sa
from alembic import op
revision, down_revision = "another", "{NEWEST}"
def upgrade():
    op.add_column("facts", sa.Column("more", sa.Integer(), nullable=True))
"""


@pytest.fixture
def with_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The migrations and one more after the newest, as in a later version of Covey."""
    folder = tmp_path / "migrations"
    shutil.copytree(schema_version.MIGRATIONS, folder)
    (folder / "versions" / "another.py").write_text(ANOTHER)
    monkeypatch.setattr(schema_version, "MIGRATIONS", folder)
    return folder


def list_columns(database: Database) -> set[str]:
    return {column["name"] for column in inspect(database._engine).get_columns("facts")}


def test_prepare__tables__are_those_of_the_models(database: Database):
    found = inspect(database._engine)
    for table in Base.metadata.sorted_tables:
        columns = {column["name"]: column["nullable"] for column in found.get_columns(table.name)}
        assert columns == {column.name: column.nullable for column in table.columns}, table.name
        unique = {tuple(u["column_names"]) for u in found.get_unique_constraints(table.name)}
        wanted = {tuple(c.columns.keys()) for c in table.constraints if type(c).__name__ == "UniqueConstraint"}
        assert wanted <= unique, table.name
        indices = {index["name"] for index in found.get_indexes(table.name)}
        assert {index.name for index in table.indexes} <= indices, table.name


def test_prepare__again__changes_nothing(database: Database):
    with database.write() as rows:
        rows.set_fact("lease", 5)
    database.prepare()
    assert not database.migrate()
    with database.read() as rows:
        assert rows.get_fact("lease") == 5


def test_prepare__tables_of_an_earlier_version__are_changed_by_the_command_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_another: Path
):
    url = f"sqlite:///{tmp_path / 'rows.sqlite3'}"
    with closing(Database(url)) as database:
        with monkeypatch.context() as before:
            before.undo()
            before.setattr(schema_version, "MIGRATIONS", Path(schema_version.__file__).parent / "migrations")
            database.prepare()
            with database.write() as rows:
                rows.set_fact("lease", 5)
        monkeypatch.setattr(schema_version, "MIGRATIONS", with_another)
        with pytest.raises(OperatorError, match="which is from an earlier version of Covey") as caught:
            database.prepare()
        assert caught.value.code == "old_tables"
        assert "more" not in list_columns(database)
        values = {"home": tmp_path, "deployment": "none", "key_file": "none", "pool": 1, "database_url": url}
        command = ["migrate", "--json", *(f"--set={name}={value}" for name, value in values.items())]
        assert [json.loads(CliRunner().invoke(coordinator, command).output) for _ in range(2)] == [
            {"changed": True},
            {"changed": False},
        ]
        assert "more" in list_columns(database)
        database.prepare()
        with database.read() as rows:
            assert rows.get_fact("lease") == 5


def test_prepare__tables_of_a_later_version__are_refused_and_kept(database: Database):
    with database.write() as rows:
        rows.session.execute(text("UPDATE alembic_version SET version_num = 'later'"))
    try:
        for act in (database.prepare, database.migrate):
            with pytest.raises(OperatorError, match="revision later, which this version of Covey does not"):
                act()
    finally:
        with database.write() as rows:
            rows.session.execute(text(f"UPDATE alembic_version SET version_num = '{NEWEST}'"))


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_prepare__processes_that_start_at_once__all_find_the_tables(tmp_path: Path, backend: str):
    with ExitStack() as stack:
        file = tmp_path / "new.sqlite3"
        url = f"sqlite:///{file}" if backend == "sqlite" else stack.enter_context(open_schema())
        starting = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PREPARE, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(STARTING)
        ]
        for process in starting:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in starting:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.wait(60) for process in starting] == [0] * STARTING
