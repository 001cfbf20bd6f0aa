"""Alembic's folder; `coordinator.db.Database.migrate` runs it."""
