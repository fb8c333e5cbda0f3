"""deploy/ starts commands that there are, with options and settings that they know."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers import copy_checkout, simic_command
from tests.pipeline.small_suite import TINY

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
    files = sorted((ROOT / "deploy").glob("Dockerfile*"))
    docker = "\n".join(file.read_text() for file in files)
    images = [service["image"] for service in SERVICES.values() if "build" not in service]
    for image in [*images, *re.findall("^FROM (.*)", docker, re.MULTILINE)]:
        assert re.search(r":\d+(\.\d+)+", image), image
    commands = [str(service.get("command", "")) for service in SERVICES.values()]
    assert not any("PASSWORD" in command or "://simic:" in command for command in commands)
    for file in files:
        users = re.findall("^USER (.*)", file.read_text(), re.MULTILINE)
        assert users[-1:] == ["simic"] or file.suffix == ".dockerignore"
    for ignored in (".gitignore", "deploy/Dockerfile.dockerignore"):
        assert {"/.env", "/prefect.toml"} <= {*(ROOT / ignored).read_text().split()}


@pytest.mark.parametrize("name", OURS)
def test_it_waits_for_what_it_needs_and_is_reached_from_this_machine_alone(name: str) -> None:
    for needed, how in SERVICES[name]["depends_on"].items():
        assert how == {"condition": "service_healthy"} and "healthcheck" in SERVICES[needed]
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


GH = """#!/bin/sh
echo "$@" >> gh.log
"""


@pytest.mark.slow
def test_the_steps_for_a_change_request_train_report_and_gate(tmp_path: Path) -> None:
    """The workflow's own commands, on a small project with a remote; only gh is a stand-in."""
    job = yaml.safe_load((ROOT / "deploy" / "change.yaml").read_text())["jobs"]["small-run"]
    steps = {step["name"]: step["run"] for step in job["steps"] if "run" in step}
    project = tmp_path / "project"
    copy_checkout(project)
    simic_command(project)
    gh = project / "bin" / "gh"
    gh.write_text(GH)
    gh.chmod(0o755)

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost", *arguments]
        return subprocess.run(
            command, cwd=project, check=True, capture_output=True, text=True
        ).stdout.strip()

    # A change request that doubles the learning rate.
    subprocess.run(["git", "init", "--bare", "--quiet", tmp_path / "origin"], check=True)
    git("init", "--quiet")
    git("remote", "add", "origin", str(tmp_path / "origin"))
    (project / ".gitignore").write_text((ROOT / ".gitignore").read_text() + "/bin/\n/gh.log\n")
    git("add", "--all")
    git("commit", "--quiet", "--message", "base")
    base = git("rev-parse", "HEAD")
    params = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(params.replace("0.0015", "0.003"))
    git("commit", "--quiet", "--all", "--message", "change")
    env = os.environ | {
        "PATH": f"{project / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(project),
        # The shell cuts at spaces, so that there are none in a setting.
        "SMALL": re.sub(r"(\w+): ", r'"\1":', " -S ".join(["", *TINY])).replace(", ", ","),
        "BASE": base,
        "CHANGE": git("rev-parse", "HEAD"),
        "REQUEST": "7",
        "REPOSITORY": "https://host/us/it",
    }

    def step(name: str) -> int:
        command = ["bash", "-eo", "pipefail", "-c", steps[name]]
        return subprocess.run(command, cwd=project, env=env, check=False).returncode

    assert step("train") == 0
    assert step("report") == 0
    comment = (project / "comment.md").read_text()
    assert "| reports/metrics.json" in comment and "raw/" in comment
    commit = git("ls-remote", "origin", "refs/heads/figures/7").split()[0]
    assert f"raw/{commit}/result.svg" in comment
    assert "<svg" in git("show", f"{commit}:result.svg")
    assert "pr comment 7 --body-file comment.md" in (project / "gh.log").read_text()
    # That a grave finding ends `simic audit` with an error is tested elsewhere.
    assert step("gate") == 0
