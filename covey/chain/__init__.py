"""Everything that accesses the chain: one client, thin contract classes, typed events and the outbox."""
