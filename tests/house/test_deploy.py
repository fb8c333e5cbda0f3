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
from prefect.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "command" in service]


def known_settings(model: Any = Settings) -> set[str]:
    """Return the names of Prefect's environment variables."""
    found = set[str]()
    for field in model.model_fields.values():
        aliases = getattr(field.validation_alias, "choices", [])
        found |= {str(alias).upper() for alias in aliases}
        if isinstance(field.annotation, type) and hasattr(field.annotation, "model_config"):
            prefix = field.annotation.model_config.get("env_prefix", "")
            found |= {f"{prefix}{name}".upper() for name in field.annotation.model_fields}
            found |= known_settings(field.annotation)
    return found


@pytest.mark.parametrize("name", OURS)
def test_its_command_exists_and_knows_the_options(name: str) -> None:
    program, *rest = SERVICES[name]["command"].split()
    if program == "python":
        assert rest[0] == "-m" and importlib.util.find_spec(rest[1])
        return
    found = shutil.which(program, path=Path(sys.executable).parent)
    assert found, program
    command = [word for word in rest[:2] if re.fullmatch(r"[a-z]+", word)]
    told = subprocess.run([found, *command, "--help"], capture_output=True, text=True, check=True).stdout
    for option in (word for word in rest if word.startswith("--")):
        assert option in told, option


@pytest.mark.parametrize("name", OURS)
def test_it_waits_for_what_it_needs_and_is_reached_from_this_machine_alone(name: str) -> None:
    for needed, how in SERVICES[name]["depends_on"].items():
        assert how == {"condition": "service_healthy"} and "healthcheck" in SERVICES[needed]
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_settings_of_prefect_are_known_to_it() -> None:
    text = (DEPLOY / "compose.yaml").read_text() + (DEPLOY / "Dockerfile").read_text()
    used = set(re.findall(r"PREFECT_[A-Z_]+", text))
    assert used and used <= known_settings()
