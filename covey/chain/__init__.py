"""Everything that touches the chain: one client, thin contracts, typed events, the outbox."""
