"""`covey demo`: the whole network on this machine, in real processes that only use HTTP, the chain and relays."""
