"""Plain vLLM in a separate process, started as Covey's engine starts it but without Covey's extensions.

`VllmPeer` starts `python -m benchmarks.engines.vllm_peer`.  Each message is a line of JSON.  The child takes the
times, so that what passes between the processes does not count.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TextIO

from covey.engines.vllm.engine_process import build_environment
from covey.engines.vllm.vllm_options import VllmOptions
from covey.errors import OperatorError

LOG = Path("build/bench/engine-peer.log")
EAGER = VllmOptions(enforce_eager=True)
MODES: Mapping[str, Mapping[str, Any]] = {
    "plain": {"temperature": 1.0, "logprobs": 0},
    "plain_without_logprobs": {"temperature": 1.0},
    "plain_greedy": {"temperature": 0.0},
}
"""Sampling parameters by mode.  `logprobs` 0 asks for that of the chosen token, which a worker must report."""


class VllmPeer:
    """The process as the benchmark sees it, used as a context."""

    def __init__(
        self, folder: Path, dtype: str, batch: int, *, device: str = "cpu", options: VllmOptions = EAGER
    ) -> None:
        """Start the process, and wait until it has loaded the policy in `folder`."""
        chosen = options.resolve(device)
        values = {**chosen.model_dump(mode="json"), "folder": str(folder), "dtype": dtype, "batch": batch}
        LOG.parent.mkdir(parents=True, exist_ok=True)
        with LOG.open("w") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.engines.vllm_peer"],
                env=build_environment(1, chosen, device=device, dtype=dtype),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._send(values)

    def run(self, mode: str, prompts: list[tuple[int, ...]], limits: list[int]) -> dict[str, float]:
        """Generate completions of exactly the given lengths; return their "wall" and "cpu" seconds and "tokens".

        Raises OperatorError("engine_died").
        """
        return self._send({"mode": mode, "prompts": prompts, "limits": limits})

    def _send(self, request: Mapping[str, Any]) -> dict[str, float]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
            answer: dict[str, float] = json.loads(self._child.stdout.readline())
        except (OSError, json.JSONDecodeError) as error:
            self.close()
            raise OperatorError("engine_died", "plain vLLM ended", fix=f"Read {LOG}") from error
        return answer

    def close(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(requests: TextIO, answers: TextIO) -> None:
    """Start vLLM with the first request, then run each other request until there are no more."""
    from vllm import LLMEngine, SamplingParams
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind

    from covey.engines.vllm.serving import build_arguments

    arguments = build_arguments(json.loads(requests.readline()))
    engine = LLMEngine.from_engine_args(replace(arguments, worker_extension_cls="", logits_processors=None))

    def run(request: Mapping[str, Any]) -> int:
        for key, (prompt, limit) in enumerate(zip(request["prompts"], request["limits"], strict=True)):
            params = SamplingParams(
                **MODES[request["mode"]],
                max_tokens=limit,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            engine.add_request(str(key), tokens_input(prompt), params)
        done = []
        while engine.has_unfinished_requests():
            done += [output.outputs[0] for output in engine.step() if output.finished]
        return sum(len(each.token_ids) for each in done)

    _answer(answers, {})
    for line in requests:
        request = json.loads(line)
        engine.reset_prefix_cache()
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = run(request)
        _answer(
            answers, {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "tokens": float(tokens)}
        )


def _answer(answers: TextIO, values: Mapping[str, float]) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as answers_:
        os.dup2(2, 1)  # what libraries print goes to the log
        serve(sys.stdin, answers_)
