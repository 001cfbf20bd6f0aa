"""The engine for real models: vLLM in a process of its own, so that its pins and its crashes stay there.

`engine` is the door, which imports neither vLLM nor torch.  `child` is the other process: `serving` runs vLLM's engine
there, `recorder` and `sampler` sit in its workers.
"""
