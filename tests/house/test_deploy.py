"""deploy/ starts commands that there are, with options and settings that they know."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "command" in service]


@pytest.mark.parametrize("name", OURS)
def test_its_command_exists_and_knows_the_options(name: str) -> None:
    program, *rest = SERVICES[name]["command"].split()
    if program == "python":
        assert rest[0] == "-m" and importlib.util.find_spec(rest[1])
        return
    executable = shutil.which(program, path=Path(sys.executable).parent)
    assert executable, program
    command = [word for word in rest[:2] if re.fullmatch(r"[a-z]+", word)]
    page = subprocess.run(
        [executable, *command, "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert [word for word in rest if word.startswith("--") and word not in page] == []


def test_no_password_is_an_argument_no_image_floats_and_nothing_runs_as_root() -> None:
    """Arguments are for everybody on the machine to read; an address would break on / and #."""
    docker = (ROOT / "deploy" / "Dockerfile").read_text()
    images = [service["image"] for service in SERVICES.values() if "build" not in service]
    for image in [*images, *re.findall("^FROM (.*)", docker, re.MULTILINE)]:
        assert re.search(r":\d+(\.\d+)+", image), image
    commands = [str(service.get("command", "")) for service in SERVICES.values()]
    assert not any("PASSWORD" in command or "://simic:" in command for command in commands)
    users = re.findall("^USER (.*)", docker, re.MULTILINE)
    assert users and users[-1] not in ("root", "0")
    for ignored in (".gitignore", "deploy/Dockerfile.dockerignore"):
        assert {"/.env", "/prefect.toml"} <= {*(ROOT / ignored).read_text().split()}


@pytest.mark.parametrize("name", OURS)
def test_it_waits_for_what_it_needs_and_is_reached_from_this_machine_alone(name: str) -> None:
    for needed, how in SERVICES[name]["depends_on"].items():
        assert how == {"condition": "service_healthy"} and "healthcheck" in SERVICES[needed]
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))
