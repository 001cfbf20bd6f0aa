"""A chain on this machine for trials and tests: Anvil with deployed contracts and funded accounts."""
