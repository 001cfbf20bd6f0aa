"""The validator: checks submissions, commits to and reveals verdicts, enforces them on chain."""
