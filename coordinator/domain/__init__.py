"""The coordinator's rules: functions of a repository, parameters and a given time."""
