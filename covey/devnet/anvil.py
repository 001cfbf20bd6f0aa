"""Anvil, a local Ethereum node: find its binary, start it on its own port, and stop it."""

import os
import shutil
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag
from typing import IO

import covey
from covey.chain.json_rpc import ChainClient
from covey.errors import OperatorError, TransientError
from covey.runtime.http import find_free_ports, listen

HOST = "127.0.0.1"
CHAIN_ID = 31337
START_TIMEOUT_SECONDS = 20.0
STATE_INTERVAL_SECONDS = 10
"""Seconds between two writes of the state. This is the maximum history that is lost if the node is killed."""
ANVIL_VERSION = "1.7.1"
"""Version that Covey is tested with, the same as in package.json."""
_PACKAGES = ("linux-amd64", "linux-arm64", "darwin-arm64", "darwin-amd64")


@dataclass(frozen=True, kw_only=True, slots=True)
class Anvil:
    """A running Anvil node. Example: url "http://127.0.0.1:8545"."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """End the process.

        Its state file, if it has one, is written before this returns. A second call has no effect.
        """
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def find_anvil() -> Path:
    """Return the path of the Anvil binary.

    It is looked up in this order: the environment variable COVEY_ANVIL, `node_modules` of the working directory and of
    Covey's checkout, and PATH. Raises OperatorError("no_anvil").
    """
    configured = os.environ.get("COVEY_ANVIL")
    if configured:
        if os.access(configured, os.X_OK):
            return Path(configured)
        raise OperatorError(
            "no_anvil",
            f"the program {configured} in COVEY_ANVIL does not exist or is not executable",
            fix="Correct the environment variable COVEY_ANVIL",
        )
    program = shutil.which("anvil")
    # A program that npm has installed globally is a link into the package's folder.
    of_program = () if program is None else Path(program).resolve().parents
    for root in (Path.cwd(), Path(covey.__file__).resolve().parent.parent, *of_program):
        for package in _PACKAGES:
            # The native binary is used, because the npm wrapper would leave it running when the wrapper is killed.
            binary = root / "node_modules" / "@foundry-rs" / f"anvil-{package}" / "bin" / "anvil"
            if os.access(binary, os.X_OK):
                return binary
    if program is None:
        raise OperatorError(
            "no_anvil",
            "the test chain needs Anvil, which is not installed",
            fix=f"Run npm install -g @foundry-rs/anvil@{ANVIL_VERSION}, or foundryup (https://getfoundry.sh), or in a "
            "checkout of Covey make setup",
        )
    return Path(program)


def start_anvil(
    port: int = 0,
    *,
    block_time: float | None = 1.0,
    state: Path | None = None,
    log: IO[bytes] | None = None,
) -> Anvil:
    """Start Anvil on 127.0.0.1 and wait until it responds.

    Port 0 selects a free port. `block_time` is in seconds. None mines each transaction at once. `state` is a file that
    is read at the start, and written every STATE_INTERVAL_SECONDS and at the end.

    Raises OperatorError("devnet_runs") or OperatorError("address_in_use") if the port is taken.
    Raises OperatorError("anvil_ended") or OperatorError("anvil_silent") if the node does not start.
    """
    chosen = find_free_ports(1)[0] if port == 0 else port
    require_free_port(chosen)
    command = [str(find_anvil()), "--host", HOST, "--port", str(chosen)]
    command += ["--chain-id", str(CHAIN_ID), "--accounts", "0", "--quiet"]
    if block_time is not None:
        command += ["--block-time", str(block_time)]
    if state is not None:
        command += ["--state", str(state), "--state-interval", str(STATE_INTERVAL_SECONDS)]
    # In its own session, so that its starter ends it and Ctrl-C on the terminal does not.
    output = subprocess.DEVNULL if log is None else log
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    anvil = Anvil(url=f"http://{HOST}:{chosen}", process=process)
    with ExitStack() as undo:
        undo.callback(anvil.stop)
        _await_answer(anvil)
        undo.pop_all()
    return anvil


def require_free_port(port: int) -> None:
    """Check that no process listens on the port.

    Otherwise a different program's responses would be taken for those of the node that is about to be started.
    Raises OperatorError("devnet_runs") or OperatorError("address_in_use").
    """
    try:
        listen(HOST, port).close()
    except OperatorError:
        try:
            is_devnet = ChainClient(f"http://{HOST}:{port}", timeout_s=2.0).chain_id() == CHAIN_ID
        except TransientError:
            is_devnet = False
        if not is_devnet:
            raise
        raise OperatorError(
            "devnet_runs",
            f"a devnet is already running on {HOST}:{port}",
            fix="Use that devnet, stop it, or choose another --port and --folder",
        ) from None


def _await_answer(anvil: Anvil) -> None:
    client = ChainClient(anvil.url, timeout_s=2.0)
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while True:
        # The process is checked first, because another program may answer on a port that Anvil did not get.
        if anvil.process.poll() is not None:
            raise OperatorError(
                "anvil_ended",
                "Anvil ended immediately after its start",
                fix="Read its log, and choose a free port with --port",
            )
        try:
            chain = client.chain_id()
        except TransientError:
            if time.monotonic() >= deadline:
                raise OperatorError(
                    "anvil_silent",
                    f"Anvil did not respond within {START_TIMEOUT_SECONDS} s of its start",
                    fix="Read its log",
                ) from None
            Flag().wait(0.05)
        else:
            if chain != CHAIN_ID:
                raise OperatorError(
                    "wrong_chain",
                    f"the service at {anvil.url} is a node of a different chain",
                    fix="Choose a free port with --port",
                )
            return
