"""What a real PostgreSQL says if it refuses a user, and what `covey up` makes of it."""

from pathlib import Path

import pytest

from coordinator.db import connection, schema_version
from covey.cli import up_down
from covey.errors import OperatorError
from covey.local.folder import create_pool_folder
from covey.local.plan import PoolPlan
from tests.fakes.private_servers import open_private_postgres

pytestmark = pytest.mark.integration


def test_require_database__role_or_database_is_not_there__is_refused_at_once(tmp_path: Path):
    create_pool_folder(tmp_path / "mine", PoolPlan(validators=1))
    settings = tmp_path / "mine" / "coordinator.toml"
    text = settings.read_text()
    with open_private_postgres(tmp_path) as postgres:
        if postgres is None:
            pytest.skip("PostgreSQL is not installed")
        for wrong, what in (
            (postgres.url.replace("covey@", "nobody@"), 'role "nobody" does not exist'),
            (postgres.url.replace("/postgres", "/absent"), 'database "absent" does not exist'),
        ):
            settings.write_text(f'{text}database_url = "{wrong}"\n')
            with pytest.raises(OperatorError, match=f"database_refused: .* refuses the connection: {what}"):
                up_down._require_database(tmp_path / "mine")
        settings.write_text(f'{text}database_url = "{postgres.url}"\n')
        up_down._require_database(tmp_path / "mine")
        engine = connection.build(postgres.url)
        schema_version.prepare_tables(engine)
        engine.dispose()
    up_down._require_database(tmp_path / "mine")  # a server that does not answer is waited for
