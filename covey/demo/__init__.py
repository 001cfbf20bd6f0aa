"""`covey demo`: the whole network on this machine, in real processes that communicate by HTTP, chain and relays."""
