"""`covey demo`: the whole network on this machine, in real processes that meet on HTTP, chain and relays only."""
