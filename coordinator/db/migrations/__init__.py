"""Alembic's folder; `coordinator.db.schema_version` runs it."""
