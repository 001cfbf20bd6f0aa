"""The coordinator's database: tables, connections, queries and migrations."""
