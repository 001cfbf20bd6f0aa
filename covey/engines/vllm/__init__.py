"""The engine for real models: vLLM in a subprocess (decision 016).

The subprocess isolates vLLM's pinned dependencies and crashes. `engine` is the interface, and imports neither vLLM nor
torch. `engine_child` is the subprocess. There `serving` runs vLLM's engine, and `recorder` and `logits_processor` run
in vLLM's workers.
"""
