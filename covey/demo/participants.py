"""Participants of the demo and their settings: keys derived from a seed, the pool's file, and a TOML file per role."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from covey.chain.wallet import save_key
from covey.demo.presets import DEFAULT, find_preset
from covey.devnet.deploy import derive_key
from covey.protocol.ids import Address

CHALLENGE_SECONDS, VETO_SECONDS, UNBOND_SECONDS = 10, 10, 20
EPOCH_SECONDS, LEDGER_SECONDS = 10, 5
"""Length of the coordinator's epochs in seconds, and the minimum length that the ledger contract accepts."""
VALIDATORS, QUORUM = 3, 2
PRICE = 10**18
MIN_STAKE = 10**18
VALIDATOR_BOND, SIGNER_PENALTY = 10**18, 10**18 // 2
OPERATOR_BOND = 10**19
BUDGET = 10**20
TOKENS = 10**21


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of `covey demo`."""

    environment: str = DEFAULT
    """Name of a preset, as accepted by `presets.find_preset`."""
    steps: int = 24
    workers: int = 2
    cheats: int = 2
    max_staleness: int = 1
    seed: int = 0
    engine: str = "hf"
    keep: bool = False
    """Whether the pool keeps running after `steps` steps, until Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """A worker and its contributor. `cheat` is a key of CHEATS, or "" for an honest worker."""

    name: str
    contributor: str
    node: Address
    cheat: str


class Participants:
    """The demo's folder: keys, data sets and settings."""

    def __init__(self, folder: Path, options: DemoOptions, *, policy: Path | None = None) -> None:
        """Write the keys. `policy` is the folder of the first policy. None means the shipped tiny model.

        Raises OperatorError("bad_demo_environment").
        """
        self.folder, self.options, self.policy = folder, options, policy
        self.preset = find_preset(options.environment)
        (folder / "keys").mkdir(parents=True)
        self._addresses: dict[str, Address] = {}
        for name in ("operator", "trainer", "arbiter", *self.validators):
            self._make_key(name)
        kinds = self.preset.cheats
        names = [(f"worker-{i + 1}", "") for i in range(options.workers)]
        names += [(f"cheat-{i + 1}", kinds[i % len(kinds)]) for i in range(options.cheats)]
        self.workers = [self._make_worker(name, cheat) for name, cheat in names]

    @property
    def validators(self) -> list[str]:
        return [f"validator-{i + 1}" for i in range(VALIDATORS)]

    @property
    def datasets(self) -> list[Path]:
        """Folders of the pool's data sets, which `write_pool` creates."""
        return [self.folder / "datasets"] if self.preset.has_data_sets else []

    @property
    def deployment(self) -> Path:
        return self.folder / "deployment.json"

    def get_key_file(self, name: str) -> Path:
        return self.folder / "keys" / f"{name}.key"

    def get_address(self, name: str) -> Address:
        return self._addresses[name]

    def get_name(self, node: str) -> str:
        """Return the name of the worker with this node address, or the address itself if there is none."""
        return next((worker.name for worker in self.workers if worker.node == node), node)

    def list_funded(self) -> dict[Address, int]:
        """Return the accounts that need ether for gas, with the token amount that each receives."""
        names = ["operator", "trainer", *self.validators, *(p.contributor for p in self.workers)]
        return {self._addresses[name]: TOKENS for name in names}

    def write_pool(self) -> Path:
        """Write the pool's data sets and the file for `covey pool create` that refers to them.

        Return the file's path.
        """
        options, preset = self.options, self.preset
        environment = preset.build_spec(self.folder / "datasets")
        terms = {
            "trainer": self._addresses["trainer"],
            "arbiter": self._addresses["arbiter"],
            "reward_per_million": PRICE,
            "min_stake": MIN_STAKE,
            "slash_amount": MIN_STAKE,
            "challenge_window": CHALLENGE_SECONDS,
            "veto_window": VETO_SECONDS,
            "unbond_window": UNBOND_SECONDS,
            "epoch_length": LEDGER_SECONDS,
            "validator_bond": VALIDATOR_BOND,
            "signer_penalty": SIGNER_PENALTY,
            "validators": [self._addresses[name] for name in self.validators],
        }
        params = {
            "name": "demo",
            "group_size": 8,
            "groups_per_step": preset.groups_per_step,
            "groups_per_task": 4,
            "max_staleness": options.max_staleness,
            **({} if options.keep else {"max_steps": options.steps}),
            "quorum": QUORUM,
            "lease_seconds": 300,
            "cooldown_seconds": 2,
            "turn_seconds": 1,
            "epoch_seconds": EPOCH_SECONDS,
            "environment": {"kind": environment.kind, "options": dict(environment.options)},
            "model": {
                "max_prompt_tokens": preset.max_prompt_tokens,
                "max_completion_tokens": preset.max_completion_tokens,
                "temperature": 1.0,
            },
            "verification": {"audit_rate": 1.0, "draw_seconds": 1},
        }
        return self._write("pool", {"terms": terms, "params": params})

    def write_role(self, name: str, settings: Mapping[str, Any], *, key: str | None = None) -> Path:
        """Write a role's TOML file with its own settings and the shared settings."""
        shared = {
            "home": str(self.folder / name),
            "deployment": str(self.deployment),
            "key_file": str(self.get_key_file(key or name)),
        }
        return self._write(name, shared | dict(settings))

    def _write(self, name: str, values: Mapping[str, Any]) -> Path:
        path = self.folder / f"{name}.toml"
        path.write_text(tomlkit.dumps(values))
        return path

    def _make_worker(self, name: str, cheat: str) -> Participant:
        contributor = f"{name}-contributor"
        self._make_key(contributor)
        return Participant(name=name, contributor=contributor, node=self._make_key(name), cheat=cheat)

    def _make_key(self, name: str) -> Address:
        wallet = save_key(self.get_key_file(name), derive_key(f"demo-{self.options.seed}", name))
        self._addresses[name] = wallet.address
        return wallet.address
