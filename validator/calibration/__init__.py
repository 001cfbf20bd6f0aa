"""Calibration: derives thresholds from honest work, before a pool is created."""
