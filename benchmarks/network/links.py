"""Hosts on this machine that are joined by links of limited bandwidth: Linux network namespaces and `tc`.

Each host has an address of its own.  A link limits what one host sends to another, whatever the number of connections.
Root is required, and the packages iproute2 and the kernel's `htb` scheduler.
"""

import os
import shutil
import subprocess
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from covey.errors import OperatorError

_BURST = "64kb"


class Links:
    """Example: `with Links() as links: links.add_host("a"); links.limit("a", "b", bytes_per_s=50e6)`."""

    def __init__(self) -> None:
        self._prefix, self._addresses, self._stack = f"cb{os.getpid() % 100000}", dict[str, str](), ExitStack()

    def __enter__(self) -> Self:
        """Create the bridge that joins all hosts.  Raises OperatorError("no_namespaces")."""
        if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
            message = "this benchmark makes network namespaces, which needs root and the commands ip and tc"
            raise OperatorError("no_namespaces", message, fix="Install iproute2 and run it as root")
        hub = f"{self._prefix}hub"
        _run("ip", "netns", "add", hub)
        self._stack.callback(_run, "ip", "netns", "del", hub)
        _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "bridge", "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def add_host(self, name: str) -> str:
        """Create a host and return its address."""
        space, hub = f"{self._prefix}{name}", f"{self._prefix}hub"
        address = f"10.99.0.{len(self._addresses) + 1}"
        port = f"port{len(self._addresses)}"
        _run("ip", "netns", "add", space)
        self._stack.callback(_run, "ip", "netns", "del", space)
        _run("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", port, "netns", hub)
        _run("ip", "-n", hub, "link", "set", port, "master", "bridge", "up")
        _run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", space, "link", "set", device, "up")
        _run("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb")
        self._addresses[name] = address
        return address

    def limit(self, sender: str, receiver: str, *, bytes_per_s: float) -> None:
        """Limit what one host sends to another."""
        address = self._addresses[receiver]
        space, number = f"{self._prefix}{sender}", address.rpartition(".")[2]
        rate = f"{round(8 * bytes_per_s)}bit"
        tc = ("tc", "-n", space)
        limits = ("rate", rate, "burst", _BURST, "cburst", _BURST)
        _run(*tc, "class", "replace", "dev", "eth0", "parent", "1:", "classid", f"1:{number}", "htb", *limits)
        match = ("protocol", "ip", "parent", "1:", "prio", number, "u32", "match", "ip", "dst", f"{address}/32")
        _run(*tc, "filter", "replace", "dev", "eth0", *match, "flowid", f"1:{number}")

    def build_command(self, host: str, *command: str) -> list[str]:
        """Return the command that runs another one on a host."""
        return ["ip", "netns", "exec", f"{self._prefix}{host}", *command]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise OperatorError(
            "no_namespaces",
            f"{' '.join(command)} failed: {done.stderr.strip()}",
            fix="Run the benchmark as root on a Linux kernel with network namespaces and htb",
        )
