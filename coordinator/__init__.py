"""The coordinator: assigns tasks, records submissions, tallies verdicts, settles epochs."""
