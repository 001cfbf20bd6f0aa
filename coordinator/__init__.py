"""The coordinator: it assigns tasks, records submissions, counts verdicts and settles epochs."""
