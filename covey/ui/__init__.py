"""Pages of the runs in a folder, for `covey ui`: they read files, and need no coordinator, database or chain."""
