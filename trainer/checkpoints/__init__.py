"""What survives a crash, and how a run resumes from it."""
