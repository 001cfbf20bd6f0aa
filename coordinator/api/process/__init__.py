"""What one API process keeps in memory, and how it answers many requests at a time."""
