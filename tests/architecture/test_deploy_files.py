"""Containers and units: commands parse as written, settings exist, and references lead somewhere."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from coordinator.config import CoordinatorConfig
from covey import cli

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OWN = [name for name, service in COMPOSE["services"].items() if "covey" in service["image"]]
COMMAND = typer.main.get_command(cli.app)


def parse(arguments: list[str], command: Any = COMMAND) -> str:
    """Parse a command as Covey does, without running it, and return the name of its last part."""
    with command.make_context(command.name, list(arguments)) as context:
        name = command.name
        if hasattr(command, "resolve_command"):
            _, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            return parse(rest, found)
        return str(name)


def fill(text: str) -> str:
    """Replace the variables of compose by their defaults."""
    return re.sub(r"\$\{\w+(?::[-?]([^}]*))?\}", lambda match: (match[1] or "x").replace("set ", ""), text)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit__command__parses(unit: Path):
    (start,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.M)
    program, *arguments = shlex.split(start)
    assert program == "/opt/covey/bin/covey"
    assert parse(arguments) in ("serve", "jobs", "pages", "run")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_units__systemd__has_no_complaint(tmp_path: Path):
    for unit in UNITS:  # The program of the unit and its user are not on this machine.
        text = unit.read_text().replace("/opt/covey/bin/covey", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / unit.name) for unit in UNITS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert [line for line in done.stderr.splitlines() if "covey-" in line] == []


@pytest.mark.parametrize("name", OWN)
def test_compose__command_and_settings__are_coveys(name: str):
    service = COMPOSE["services"][name]
    parse([fill(part) for part in service["command"]])
    known = {f"COVEY_{field.upper()}" for field in CoordinatorConfig.model_fields} | {"FORWARDED_ALLOW_IPS"}
    assert service.get("environment", {}).keys() <= known


def test_parse__wrong_option__is_refused():
    with pytest.raises(Exception, match="No such option"):
        parse(["coordinator", "serve", "--proceses", "2"])


def test_compose__volumes_services_and_files__exist():
    services = COMPOSE["services"]
    assert {"database", "queue", "relay", "prometheus", "grafana"} <= services.keys()
    for service in services.values():
        assert service.get("depends_on", {}).keys() <= services.keys()
        for volume in service.get("volumes", ()):
            source = re.sub(r"^\$\{[^}]*\}", "/pool", volume).split(":")[0]
            is_known = source == "/pool" or source in COMPOSE["volumes"] or (DEPLOY / source).exists()
            assert is_known, volume
    targets = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    for job in targets:
        assert [target.split(":")[0] for config in job["static_configs"] for target in config["targets"]] == [
            job["job_name"]
        ]
        assert job["job_name"] in services


def test_pages__process_that_strangers_reach__sees_no_key():
    pages = COMPOSE["services"]["pages"]
    assert (pages["volumes"], pages["tmpfs"]) == (["${POOL}:/pool:ro"], ["/pool/keys"])
    assert "InaccessiblePaths=-/srv/covey/keys\n" in (DEPLOY / "systemd/covey-pages.service").read_text()


def test_image__source_tree__is_copied_without_keys_and_with_all_that_the_package_is_built_from():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    copied = {line[1:] for line in lines if line.startswith("!")}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*build["packages"], *build["force-include"], "pyproject.toml", "constraints.txt"} <= copied
    assert lines[0] == "*"
    assert all((ROOT / each).exists() for each in copied)
    assert "**/*.key" in lines
