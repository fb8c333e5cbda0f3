"""Rules of the house around the stages: what is ignored, pinned, declared, imported, and how large it may be."""

import ast
import importlib.metadata
import os
import subprocess
import sys
import time
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from simic import params, seals
from simic.evaluation import endpoints
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.telemetry import curves

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DVC_FILE = yaml.safe_load((ROOT / "dvc.yaml").read_text())
DVC = DVC_FILE["stages"]
WORKSPACE = Workspace(Path())

# No dependency of any record: recorded params hold the values and what is valid, DVC knows outputs by their
# place, messages are words, and what is refused makes nothing.
NOT_RECORDED = {
    f"simic/{name}.py"
    for name in (
        *(
            "__init__",
            "errors",
            "memory",
            "params",
            "progress",
            "registry",
            "safe_read",
            "validation_messages",
        ),
        *("pipeline/__init__", "pipeline/dvc_record", "pipeline/paths", "seals"),
    )
}
SHOWS = {
    "simic/pipeline/display.py"
}  # progress, from what it is told: no result hangs on it, or on what it imports


def ignored(folder: Path, names: list[str]) -> list[str]:
    """Return the names that git ignores by our .gitignore."""
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    command = ["git", "-C", str(folder), "check-ignore", "--stdin"]
    process = subprocess.run(
        command, input="\n".join(names), capture_output=True, text=True, check=False
    )
    assert process.returncode in (0, 1)  # 1 = none ignored; 128 = the command failed
    return process.stdout.splitlines()


def test_git_ignores_outputs_and_state_and_nothing_of_the_code(tmp_path: Path) -> None:
    """Also not names that only exist later: simic/data would fall to an unanchored pattern for /data."""
    folders = ("data", "models", "telemetry", "reports", "checkpoints", "build", "dist")
    files = [
        path
        for folder in ("simic", "flows", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    ]
    code = [str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts]
    assert ignored(tmp_path, [*code, *(f"simic/{name}/new.py" for name in folders)]) == []
    outputs = ["mlflow.db", *(f"{name}/x" for name in (*folders[:5], "mlruns", ".prefect"))]
    assert ignored(tmp_path, outputs) == outputs


def test_stages_are_the_same_in_dvc_and_in_code_and_in_order() -> None:
    assert list(DVC) == list(stages.STAGES) == ["prepare", "headroom", "train", "evaluate", "audit"]
    assert [stage["cmd"] for stage in DVC.values()] == [f"simic stage {name}" for name in DVC]
    assert (
        ROOT / params.EXTENSIONS_FOLDER / "README.md"
    ).is_file()  # DVC wants the folder to exist
    sections = set(params.Params.model_fields) - {"runtime"}
    for name, stage in DVC.items():
        assert {name, "rng_seed"} <= set(stage["params"])
        assert {param.partition(".")[0] for param in stage["params"]} <= sections
        assert name == "audit" or "extensions" in stage["params"]


def test_headroom_is_measured_again_for_the_settings_in_its_digest_and_for_no_others() -> None:
    sections = {"rng_seed", "extensions", "headroom", "evaluate.epochs", "evaluate.eval_seeds"}
    assert set(DVC["headroom"]["params"]) == sections | {
        f"train.{name}" for name in endpoints.SETTINGS
    }


def declared(name: str) -> dict[str, dict[str, bool]]:
    """Return the outputs of a stage and how DVC is to treat them."""
    listed = [out for kind in ("outs", "metrics") for out in DVC[name].get(kind, [])]
    return {place: options for out in listed for place, options in out.items()}


def test_dvc_deletes_no_output_before_a_command_that_may_be_refused() -> None:
    for name in DVC:
        assert set(map(str, declared(name).values())) == {"{'persist': True}"}, name


def test_what_dvc_shows_of_a_run_is_what_the_stages_write() -> None:
    """Every column of the curves has a plot, and every stage that learns or judges has its numbers."""
    assert DVC_FILE["metrics"] == [str(WORKSPACE.telemetry / curves.METRICS_FILE)]
    assert [place for name in DVC for entry in DVC[name].get("metrics", []) for place in entry] == [
        str(WORKSPACE.metrics),
        str(WORKSPACE.reports / "audit_metrics.json"),
    ]
    figures, *drawn = DVC_FILE["plots"]
    assert figures == str(WORKSPACE.reports / "figures")
    places = [(name, plot["x"], plot["y"]) for entry in drawn for name, plot in entry.items()]
    across, *columns = curves.COLUMNS
    file = str(WORKSPACE.telemetry / curves.CURVES_FILE)
    assert places == [(name, across, {file: name}) for name in columns]


@cache
def parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


@cache
def imported_by(file: str) -> set[str]:
    return imported(parsed(file))


def imported(tree: ast.AST) -> set[str]:
    """Return the files of simic that a piece of code imports, directly."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    places = {name.replace(".", "/") for name in names if name.split(".")[0] == "simic"}
    files = {place + ending for place in places for ending in (".py", "/__init__.py")}
    return {
        file for file in files if (ROOT / file).exists() and len(parsed(file).body) > 1
    }  # more than a sentence


def closure(files: set[str]) -> set[str]:
    """Return these files and all that they import, directly or not."""
    visited: set[str] = set()
    while files:
        file = files.pop()
        visited.add(file)
        files |= imported_by(file) - visited
    return visited


def run_by(stage: str) -> set[str]:
    """Return the files that a stage function and the private functions it calls import, there or at the top for a name
    that they use.
    """
    module = parsed("simic/pipeline/stages.py")
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    called = {
        node.id
        for node in ast.walk(functions[stage])
        if isinstance(node, ast.Name) and node.id.startswith("_")
    }
    files = set[str]()
    for function in (functions[name] for name in {stage, *called} & functions.keys()):
        names_read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        top = [node for node in module.body if isinstance(node, ast.ImportFrom)]
        names = [
            (
                node.module,
                [alias for alias in node.names if (alias.asname or alias.name) in names_read],
            )
            for node in top
        ]
        files |= imported(function).union(
            *(imported(ast.ImportFrom(module, aliases)) for module, aliases in names if aliases)
        )
    return files


@pytest.mark.parametrize("stage", list(seals.STAGES))
def test_seal_and_record_of_a_stage_look_at_the_same(stage: str) -> None:
    sealed = seals.STAGES[stage]
    recorded = DVC[stage]
    code = {f"simic/{place}" for place in sealed.code}
    seal = {(seals.FOLDER / f"{stage}.json").as_posix()}
    assert set(recorded["deps"]) == code | set(sealed.reads) | {params.EXTENSIONS_FOLDER}
    assert set(recorded["params"]) == set(sealed.params)
    assert set(declared(stage)) == set(sealed.writes) | seal


@pytest.mark.parametrize("name", list(DVC))
def test_dependencies_are_all_the_code_that_a_stage_runs(name: str) -> None:
    """What a stage imports, directly or not, is a dependency of its record: no change of code escapes it."""
    listed = tuple(dep for dep in DVC[name]["deps"] if dep.startswith("simic"))
    listed = tuple(dep for dep in listed if not dep.startswith("simic/published"))  # data
    files = closure(run_by(name) - SHOWS) - NOT_RECORDED
    assert files
    assert {file for file in files if not file.startswith(listed)} == set()
    assert [
        dep for dep in listed if not any(file.startswith(dep) for file in files)
    ] == []  # and nothing more is


def test_every_dependency_is_pinned_and_every_pin_is_exact_and_public() -> None:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    pins = dict(line.split("==") for line in lines)
    assert not [
        version for version in pins.values() if "+" in version
    ]  # a local version exists on one machine only
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    extras = PROJECT["optional-dependencies"]
    assert extras["dev"][:2] == ["simic-grow[pipeline]", "simic-grow[onnx]"]
    named = extras["pipeline"] + extras["onnx"] + extras["dev"][2:]
    for text in PROJECT["dependencies"] + named:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), text


def of_the_core() -> set[str]:
    """Return the names of the packages that `pip install .` brings, with what those need in turn."""
    packages: set[str] = set()
    left = [Requirement(text) for text in PROJECT["dependencies"]]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name not in packages and (
            requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ):
            packages.add(name)
            left += [Requirement(text) for text in importlib.metadata.requires(name) or ()]
    return packages


CORE_ALONE = """
import importlib, pkgutil, sys
from simic import agent, envs, growth, params, training
for room in (agent, envs, growth, training):
    for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
        importlib.import_module(module.name)
learner = agent.Agent("CartPole-v1", rng_seed=1, rollout_steps=16, policy=params.Policy(core="none"))
learner.train(128)
print(len(learner.evaluate(episodes=2)))
import simic
from simic.__main__ import main
try:
    simic.GrowClassifier
except ImportError as missing:
    print(missing)
main()
"""


def test_core_runs_without_the_tools_around_it_and_what_needs_one_says_what_to_install() -> None:
    """In a process that can import the core's dependencies alone."""
    core = of_the_core()
    modules = importlib.metadata.packages_distributions().items()
    tools = {
        name
        for name, owners in modules
        if name != "simic" and not core & {*map(canonicalize_name, owners)}
    }
    assert {
        "prefect",
        "mlflow",
        "dvc",
        "scipy",
        "sklearn",
        "pyarrow",
        "yaml",
        "typer",
        "rich",
    } <= tools
    blocked = (
        f"import sys\nsys.modules |= dict.fromkeys({tools - set(sys.builtin_module_names)!r})\n"
    )
    command = [sys.executable, "-c", blocked + CORE_ALONE]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    message = "simic: typer is not installed; pip install 'simic-grow[pipeline]'\n"
    assert (process.returncode, process.stderr) == (2, message)
    episodes, refused = process.stdout.splitlines()
    assert episodes == "2" and refused.startswith("simic.GrowClassifier needs ")
    assert refused.endswith(", of simic's extra pipeline")


FAKE_PYTHON = """#!/bin/sh
echo "$* $PYTHONDONTWRITEBYTECODE" >> "$CALLS"
case "$*" in
    *venv*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *install*) test ! -e interrupted ;;
esac
"""


def test_only_what_changed_is_installed_and_an_interrupted_or_broken_environment_is_built_anew(
    tmp_path: Path,
) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    python = tmp_path / "python"
    calls = tmp_path / "calls"
    interrupted = tmp_path / "interrupted"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)

    def make(target: str) -> list[str]:
        """Return the installations that a target made."""
        calls.write_text("")
        # The Makefile takes the last one out: else every process would compile what it imports.
        environment = {
            **os.environ,
            "CALLS": str(calls),
            "MAKEFLAGS": "",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = ["make", "--no-print-directory", f"PYTHON={python}", target]
        subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True)
        words = [
            line.split()[-1] for line in calls.read_text().splitlines() if "--version" not in line
        ]
        return [word for word in words if word in (".venv", ".[pipeline]", ".[dev]")]

    venv = tmp_path / ".venv"
    pipeline = ".[pipeline]"
    dev = ".[dev]"
    assert make("install") == [venv.name, pipeline]
    assert make("run") == []
    interrupted.touch()
    assert make("test") == [dev]  # on top of what is there
    interrupted.unlink()
    assert make("test") == [venv.name, dev]
    assert make("test") == make("run") == []  # the second includes the first
    later = time.time() + 60
    os.utime(tmp_path / "constraints.txt", (later, later))
    assert make("install") == [pipeline]
    (venv / "bin" / "python").unlink()
    assert make("install") == [venv.name, pipeline]


def test_ci_runs_check_and_test() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    commands = [
        line
        for line in script.read_text().splitlines()
        if "make" in line and not line.startswith("#")
    ]
    assert [command.split()[-1] for command in commands] == ["check", "test"]


def test_settings_of_prefect_keep_everything_here() -> None:
    settings = PYPROJECT["tool"]["prefect"]
    assert settings["home"] == ".prefect"
    assert settings["api"]["url"].startswith("http://127.0.0.1:")
    assert settings["server"]["analytics_enabled"] is False
    assert settings["cloud"]["enable_orchestration_telemetry"] is False
    assert settings["flows"]["heartbeat_frequency"] >= 30  # Prefect refuses less
