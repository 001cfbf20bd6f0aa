"""Seconds from the optimizer step to the policy in the engine: trainer, origin, relay and worker over slow links.

Each of origin, relay and worker is a host of its own, and every link between two of them has the bandwidth in question.
The policy is a Qwen2 of random weights, and the step moves every weight by 1e-6 as Adam does.  `full` is the first
policy, which is an anchor, and `delta` the second.  The bound is bytes over bandwidth; the bar is 1.3 times the bound
plus 2 s.  `pause` is the time for which the engine cannot generate.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from safetensors.torch import load_file

from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.network.broadcast import (
    POOL,
    TrainerFolder,
    build_client,
    open_folder,
    serve,
    take_step,
    to_bfloat16,
)
from benchmarks.network.links import Links
from covey.errors import OperatorError
from covey.protocol.policy_record import WEIGHTS_FILE

LINKS = {"100mbit": 12.5e6, "590mbit": 73.75e6}
"""Bandwidths in bytes/s.  The original SHARDCAST reached 590 Mb/s."""
PAPER_BYTES, PAPER_SECONDS = 62e9, 14 * 60
"""Size of a policy of INTELLECT-2, and the time that its broadcast took (section 4.2 of arXiv 2505.07291)."""
LEARNER_RATIO = 159
"""How many times smaller a delta of the project's learner is at 1e-6, by `make bench NAME=delta`.  The random weights
of this benchmark have smaller deltas.
"""
OVER_BOUND = Bar(most=1.0)


def build_policy(folder: Path) -> None:
    """Write a Qwen2 of about 60 million random weights with the tokenizer of the shipped model."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from covey.model.policy_files import load_tokenizer, save_policy
    from covey.model.tiny import tiny_folder

    tokenizer = load_tokenizer(tiny_folder())
    config = Qwen2Config(
        vocab_size=4096, hidden_size=640, intermediate_size=2560, num_hidden_layers=8, num_attention_heads=10,
        num_key_value_heads=2, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    save_policy(Qwen2ForCausalLM(config), tokenizer, folder, "bfloat16")


def wait_and_load(root: str, urls: Sequence[str]) -> None:
    """Load each policy into an engine as soon as a relay offers it, and print when it was live."""
    from covey.engines.hf.engine import HuggingFaceEngine
    from covey.errors import TransientError
    from covey.protocol.ids import Step

    client, engine = build_client(Path(root), urls), HuggingFaceEngine(dtype="bfloat16")
    print("started", flush=True)
    for step, line in enumerate(sys.stdin):
        while True:
            try:
                folder = client.fetch(Step(step), json.loads(line))
                break
            except TransientError:
                time.sleep(0.05)
        engine.load_policy(folder, step)
        print(json.dumps({"at": time.time(), "pause": engine.load_pause}), flush=True)


class RemoteWorker:
    """The process of `wait_and_load` on another host."""

    def __init__(self, links: Links, root: Path, url: str) -> None:
        call = f"from benchmarks.network.time_to_ready import wait_and_load; wait_and_load({str(root)!r}, [{url!r}])"
        self._process = subprocess.Popen(
            links.build_command("worker", sys.executable, "-c", call),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._read()

    def load(self, record: str) -> dict[str, float]:
        """Let the worker load a policy, and return when it was live and the pause of its engine."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(record) + "\n")
        self._process.stdin.flush()
        values: dict[str, float] = json.loads(self._read())
        return values

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait(10)

    def _read(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("started", "{")):
                return line
        raise OperatorError("child_failed", "the worker ended", fix="Run wait_and_load by hand")


@contextmanager
def open_hosts(folder: Path, trainer: TrainerFolder, *, bytes_per_s: float) -> Iterator[RemoteWorker]:
    """Start origin, relay and worker on hosts that are joined by links of the given bandwidth."""
    with Links() as links, ExitStack() as stack:
        addresses = {name: links.add_host(name) for name in ("origin", "relay", "worker")}
        for sender in addresses:
            for receiver in addresses.keys() - {sender}:
                links.limit(sender, receiver, bytes_per_s=bytes_per_s)
        for name, arguments in (
            ("origin", ("origin", "run", "--root", str(trainer.origin))),
            ("relay", ("relay", "run", "--root", str(folder / "relay"), "--pool", str(POOL),
                       "--upstream", f"http://{addresses['origin']}:9000")),
        ):  # fmt: skip
            port = "9000" if name == "origin" else "9001"
            url = f"http://{addresses[name]}:{port}/health"
            host = partial(links.build_command, name)
            stack.enter_context(serve(*arguments, "--host", addresses[name], "--port", port, url=url, wrap=host))
        worker = RemoteWorker(links, folder / "policies", f"http://{addresses['relay']}:9001")
        stack.callback(worker.close)
        yield worker


def measure(name: str, bytes_per_s: float) -> list[Measurement]:
    """Measure a full policy and a delta over one kind of link."""
    found = list[Measurement]()
    with open_folder() as folder:
        build_policy(folder / "model")
        masters = {name: tensor.float().numpy() for name, tensor in load_file(folder / "model" / WEIGHTS_FILE).items()}
        trainer = TrainerFolder(folder)
        size = sum(2 * values.size for values in masters.values())
        with open_hosts(folder, trainer, bytes_per_s=bytes_per_s) as worker:
            for step, kind in enumerate(("start", "full", "delta")):
                take_step(masters, step)
                started = time.time()
                tensors = {name: to_bfloat16(values) for name, values in masters.items()}
                record = trainer.offer(trainer.export(tensors, folder / "model"), as_anchor=kind != "delta")
                live = worker.load(record)
                head = trainer.read_head()
                sent = min(way.size for way in head.policies[0].ways)
                if kind == "start":  # The engine is built here, and the worker knows no rate.
                    continue
                seconds, bound = live["at"] - started, sent / bytes_per_s
                values = {
                    f"seconds_to_ready.{kind}.{name}": (seconds, "s"),
                    f"over_bar.{kind}.{name}": (seconds / (1.3 * bound + 2), "ratio"),
                    f"bound.{kind}.{name}": (bound, "s"),
                    f"pause.{kind}.{name}": (live["pause"], "s"),
                    f"sent_share.{kind}.{name}": (sent / size, "ratio"),
                }
                found += [Measurement(name=key, value=value, unit=unit, n=1) for key, (value, unit) in values.items()]
    return found


def build_paper(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Extrapolate the transfer of the paper's policy as a delta.  The work of both machines comes on top."""
    values = {each.name: each.value for each in measurements}
    seconds = PAPER_BYTES / LEARNER_RATIO / LINKS["590mbit"]
    peer = "INTELLECT-2, full policy"
    work = values["seconds_to_ready.delta.590mbit"] - values["bound.delta.590mbit"]
    size = values["bound.full.590mbit"] * LINKS["590mbit"]
    return [
        Measurement(name="paper_transfer_seconds", value=seconds, unit="s", n=1, peer=peer),
        Measurement(name="paper_speedup", value=PAPER_SECONDS / seconds, unit="ratio", n=1, peer=peer),
        Measurement(name="work_seconds_per_gb", value=work / size * 1e9, unit="s/GB", n=1),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench NAME=ready", description=(__doc__ or "").split("\n\n")[0])
    parser.parse_args([each for each in arguments if each != "--save"])
    measurements = [each for name, rate in LINKS.items() for each in measure(name, rate)]
    measurements = set_bars([*measurements, *build_paper(measurements)], {"over_bar": OVER_BOUND})
    return finish("ready", measurements, find_misses(measurements), arguments)
