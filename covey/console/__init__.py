"""What the commands share: options, accounts that sign, a pool's file, and how they print."""
