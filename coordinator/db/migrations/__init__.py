"""Alembic's folder; `coordinator.db.database.Database.migrate` runs it."""
