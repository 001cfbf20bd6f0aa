"""The benchmarks: the name that a user gives, the module that it runs, and what each measures."""

import ast
from pathlib import Path

MODULES = {
    "check": "benchmarks.network.check",
    "demo": "benchmarks.network.demo_run",
    "gas": "benchmarks.contracts.gas",
    "verification": "benchmarks.verification.detection",
    "schemes": "benchmarks.verification.schemes",
    "exact": "benchmarks.verification.exact",
    "deterrence": "benchmarks.verification.campaign_search",
    "graders": "benchmarks.verification.graders",
    "toploc": "benchmarks.engines.activation_proofs",
    "engine": "benchmarks.engines.generation_speed",
    "objectives": "benchmarks.training.objectives",
    "memory": "benchmarks.training.head_memory",
    "staleness": "benchmarks.training.staleness",
    "trainer": "benchmarks.training.throughput",
    "local-run": "benchmarks.training.local_run",
    "utilisation": "benchmarks.training.utilisation",
    "delta": "benchmarks.network.policy_delta",
    "shardcast": "benchmarks.network.broadcast_speed",
    "ready": "benchmarks.network.time_to_ready",
    "fanout": "benchmarks.network.fan_out",
    "expected-pay": "benchmarks.network.expected_pay",
    "coordinator": "benchmarks.network.coordinator",
    "scale": "benchmarks.network.coordinator_scale",
    "pages": "benchmarks.network.pages_speed",
    "crowd": "benchmarks.network.crowd",
    "floods": "benchmarks.network.floods",
}
"""Modules by name, in the order of docs/benchmarks.md.  Each has `main(arguments) -> exit code`."""


def read_summary(name: str) -> str:
    """Read the first paragraph of a benchmark's docstring, without an import, which would load PyTorch."""
    path = Path(__file__).parent.joinpath(*MODULES[name].split(".")[1:]).with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split())
