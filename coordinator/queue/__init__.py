"""Celery, its queues, and the broker that starts the jobs."""
