"""A chain on this machine for trials and tests: Anvil, with the contracts deployed and accounts funded."""
