"""The float64 reference shares no code with what it checks; only its drivers run that."""

import ast

from tests.helpers import ROOT

REFERENCE = ROOT / "tests/reference"
DRIVERS = ("finished_run.py", "finished_gym_run.py", "small_run.py", "recorded_iterations.py")
FREE = ("simic.params", "simic.errors")  # settings and messages, nothing that computes


def test_the_reference_imports_only_params_and_errors_of_simic() -> None:
    imported: dict[str, set[str]] = {}
    for path in REFERENCE.glob("*.py"):
        if path.name in DRIVERS or path.name.startswith(("test_", "conftest")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                modules = (
                    [f"simic.{alias.name}" for alias in node.names]
                    if module == "simic"
                    else [module]
                )
            shared = {
                name for name in modules if name.startswith(("simic", "flows")) and name not in FREE
            }
            imported.setdefault(path.name, set()).update(shared)
    assert len(imported) >= 15
    assert {name for name, modules in imported.items() if modules} == set()
