"""What a run reports of itself: metrics, evaluations, alarms."""
