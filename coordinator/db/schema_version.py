"""The version of the tables. A process that finds an empty database creates them. Only `migrate` changes existing ones.

Upgrading is a separate step, because processes of the previous version may still be running.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from coordinator.db.connection import require_admitted, translate_outage
from covey.errors import OperatorError, TransientError

MIGRATIONS = Path(__file__).parent / "migrations"


def prepare_tables(engine: Engine) -> None:
    """Create the tables if the database has none. Processes that start together do this one after the other.

    Raises OperatorError("old_tables") if an earlier version of Covey created the tables, and
    OperatorError("unknown_tables") if a later version did. Raises the errors of `require_admitted`, too.
    """
    found = _find_revision(engine)
    if found is None:
        _upgrade(engine)
    else:
        _require_newest(found)


def require_tables(engine: Engine) -> None:
    """Return if the tables are those of this version.

    Raises TransientError("no_tables") if there are none yet, and the errors of `prepare_tables`.
    """
    found = _find_revision(engine)
    if found is None:
        raise TransientError("no_tables", "the database has no tables yet, which covey coordinator serve makes")
    _require_newest(found)


def _require_newest(found: str) -> None:
    """Raise OperatorError("old_tables") unless a revision is the newest."""
    if found != ScriptDirectory(str(MIGRATIONS)).get_current_head():
        raise OperatorError(
            "old_tables",
            f"the tables of the database have revision {found}, which is from an earlier version of Covey",
            fix="Stop the coordinator's processes and run covey coordinator migrate",
        )


def migrate(engine: Engine) -> bool:
    """Migrate the tables to this version of Covey in one transaction, and return whether anything changed.

    Raises OperatorError("unknown_tables") if a later version of Covey created the tables, and the errors of
    `require_admitted`.
    """
    before = _find_revision(engine)
    _upgrade(engine)
    return before != _find_revision(engine)


def _find_revision(engine: Engine) -> str | None:
    """Return the revision of the tables, or None if there are none."""
    require_admitted(engine)
    with translate_outage(), engine.connect() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    known = {each.revision for each in ScriptDirectory(str(MIGRATIONS)).walk_revisions()}
    if found is not None and found not in known:
        raise OperatorError(
            "unknown_tables",
            f"the tables of the database have revision {found}, which this version of Covey does not know",
            fix="Install the version of Covey that created the tables, or set another database_url",
        )
    return found


def _upgrade(engine: Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["engine"] = engine
    with translate_outage():
        command.upgrade(config, "head")
