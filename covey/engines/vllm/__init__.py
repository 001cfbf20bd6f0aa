"""The engine for real models: vLLM in a subprocess (decision 016).

The subprocess isolates vLLM's pinned dependencies and crashes. `engine` is the interface, and imports neither vLLM nor
torch. `engine_child` is the subprocess. In it, `serving` runs vLLM's engine, and vLLM's workers run `recorder` and
`logits_processor`.
"""
