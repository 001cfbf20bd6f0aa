"""`covey demo`: the whole network on this machine, in real processes that use HTTP, the chain and relays."""
