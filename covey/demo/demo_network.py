"""The demo's network: chain, contracts, pool, stakes and a process for every role.

It is set up with the commands that a user would run.
"""

import contextlib
import io
import json
from collections.abc import Callable
from typing import Any

from covey.chain.contracts import Contracts
from covey.chain.follower import Follower
from covey.chain.json_rpc import ChainClient
from covey.demo.participants import BUDGET, MIN_STAKE, OPERATOR_BOND, VALIDATOR_BOND, Participants
from covey.devnet.anvil import Anvil
from covey.devnet.deploy import derive_wallet, fund, up
from covey.local.processes import Processes, Running, build_environment
from covey.model.tiny import tiny_folder
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol.ids import PoolId
from covey.runtime.http import find_free_ports

POOL = PoolId(1)
LEARNING = {"optim": {"learning_rate": 5e-4, "warmup_steps": 0}}
"""Trainer settings that have been tried with the demo's tasks; see configs/trainer.toml."""

Invoke = Callable[[list[str]], object]
ENGINES = ("hf", "vllm")
"""Inference engines that workers can use."""


class DemoNetwork:
    """All processes of the demo. Call `open`, then `start_all`, and always `close`."""

    def __init__(self, participants: Participants, invoke: Invoke) -> None:
        """Prepare the network.

        `invoke` runs a `covey` command in this process and prints its output to standard output.
        """
        self.participants, self._invoke = participants, invoke
        logs = participants.folder / "logs"
        self.processes = Processes(logs, environment=build_environment(logs / "tmp"))
        self._api, self._origin, self._relay, self._pages = find_free_ports(4)
        self.url, self.pages_url = (f"http://127.0.0.1:{port}" for port in (self._api, self._pages))
        self.anvil: Anvil | None = None
        self._commands: dict[str, list[str]] = {}

    def open(self) -> None:
        """Set up chain, contracts, pool, stakes and registrations.

        During the set-up each transaction is mined at once. Afterwards a block is mined every second.
        """
        participants = self.participants
        seed = f"demo-{participants.options.seed}"
        self.anvil, deployment = up(participants.folder, block_time=None, seed=seed)
        self.chain = ChainClient(deployment.choose_node())
        self.contracts = Contracts(self.chain, deployment)
        self.follower = Follower(self.chain, deployment)
        spectator = derive_wallet(seed, "spectator")
        self.client = CoordinatorClient(self.url, spectator, chain_id=deployment.chain_id)
        fund(deployment, derive_wallet(seed, "deployer"), participants.list_funded())
        pool_file = str(participants.write_pool())
        options = [argument for folder in participants.datasets for argument in ("--dataset", str(folder))]
        self.command("pool", "create", pool_file, *options, key="operator", pool=False)
        self.command("pool", "fund", str(BUDGET), "--raw", key="operator")
        self.command("pool", "start", key="operator")
        self.command("stake", "add", str(OPERATOR_BOND), "--raw", "--kind", "operator", key="operator")
        for name in participants.validators:
            self.command("stake", "add", str(VALIDATOR_BOND), "--raw", "--kind", "validator", key=name)
        for worker in participants.workers:
            self.command("stake", "add", str(2 * MIN_STAKE), "--raw", key=worker.contributor)
            node_key = str(participants.get_key_file(worker.name))
            self.command("worker", "register", "--node-key-file", node_key, key=worker.contributor)
        self.chain.request("evm_setAutomine", False)
        self.chain.request("evm_setIntervalMining", 1)
        self._write_commands()

    def _write_commands(self) -> None:
        """Write the settings of every role, and record the commands that start them, in start order."""
        participants = self.participants
        origin_root, relay_root = str(participants.folder / "origin"), str(participants.folder / "relay")
        origin_url, relay_url = (f"http://127.0.0.1:{port}" for port in (self._origin, self._relay))
        serving = {"pool": POOL, "port": self._api, "pages_port": self._pages, "relays": [relay_url]}
        serving["pages_tokenizer"] = str(participants.policy or tiny_folder())
        config = str(participants.write_role("coordinator", serving, key="operator"))
        member = {"pool": POOL, "coordinator_url": self.url}
        learning: dict[str, object] = {"origin_root": origin_root, "seed": participants.options.seed}
        if not participants.options.keep:
            learning["steps"] = participants.options.steps
        learning["eval"] = {"every": 1, "prompts": participants.preset.evaluation_prompts, "samples": 2}
        if participants.policy is not None:
            learning["model"] = {"path": str(participants.policy)}
        if participants.datasets:
            learning["datasets"] = [str(folder) for folder in participants.datasets]
        trainer = str(participants.write_role("trainer", member | learning | LEARNING))
        self._commands = {
            "coordinator": ["coordinator", "serve", "--config", config],
            "jobs": ["coordinator", "jobs", "--config", config],
            "pages": ["coordinator", "pages", "--config", config],
            "origin": ["origin", "run", "--root", origin_root, "--port", str(self._origin)],
            "relay": ["relay", "run", "--root", relay_root, "--upstream", origin_url, "--port", str(self._relay)],
            "trainer": ["trainer", "run", "--config", trainer],
        }
        for worker in participants.workers:
            command = ["worker", "cheat", worker.cheat] if worker.cheat else ["worker", "run"]
            file = participants.write_role(
                worker.name, dict[str, object](member) | {"engine": participants.options.engine}
            )
            self._commands[worker.name] = [*command, "--config", str(file)]
        for name in participants.validators:
            self._commands[name] = ["validator", "run", "--config", str(participants.write_role(name, member))]

    def start_all(self) -> None:
        for name in self._commands:
            self.start(name)

    def start(self, name: str) -> Running:
        """Start a role's process, or restart it after it has ended."""
        return self.processes.start(name, *self._commands[name])

    def command(self, *arguments: str, key: str, pool: bool = True) -> dict[str, Any]:
        """Run a `covey` command in this process and return its JSON output."""
        common = [
            "--deployment",
            str(self.participants.deployment),
            "--key-file",
            str(self.participants.get_key_file(key)),
            "--json",
        ]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            self._invoke([*arguments, *common, *(["--pool", str(POOL)] if pool else [])])
        printed: dict[str, Any] = json.loads(output.getvalue())
        return printed

    def advance_clock(self, seconds: int) -> None:
        """Move the chain's time forward. This is safe only after the last step, when all work has ended."""
        self.chain.request("evm_increaseTime", hex(seconds))
        self.chain.request("evm_mine")

    def close(self) -> None:
        """End every process."""
        self.processes.stop()
        if self.anvil is not None:
            self.anvil.stop()
