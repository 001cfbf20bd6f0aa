"""Monitoring of a run: metrics, evaluations and alarms."""
