"""Distribution of policies and data sets, in pieces, from the origin through relays to clients."""
