"""The validator: checks submissions, commits and reveals verdicts, enforces on chain."""
