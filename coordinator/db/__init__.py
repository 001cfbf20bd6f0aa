"""The coordinator's database: tables, connection, queries, migrations."""
