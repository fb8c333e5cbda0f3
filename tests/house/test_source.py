"""Rules that every file of the source keeps; each closes a kind of defect that the earlier system had (findings.md)."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from simic import params

ROOT = Path(__file__).parents[2]
SOURCES: dict[str, str] = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for folder in ("simic", "flows")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
TREES: dict[str, ast.Module] = {name: ast.parse(text) for name, text in SOURCES.items()}
NODES: dict[str, list[ast.AST]] = {name: list(ast.walk(tree)) for name, tree in TREES.items()}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Node = TypeVar("Node", bound=ast.AST)


def every(kind: type[Node] | tuple[type[Node], ...], *folders: str) -> Iterator[tuple[str, Node]]:
    """Yield each node of a kind with its file, in all files or in those of the given folders."""
    for name, nodes in NODES.items():
        if not folders or name.startswith(folders):
            for node in nodes:
                if isinstance(node, kind):
                    yield name, node


def dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` of a name or a chain of attributes, ``.c`` of an attribute of anything else; empty otherwise."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def at(name: str, node: ast.AST) -> str:
    """Return where a node is: ``file:line``."""
    return f"{name}:{getattr(node, 'lineno', 0)}"


# --- rules of ruff ---

RUFF = {
    "F": "nothing imported is unused",
    "UP": "unions are written one way",
    "W": "text is plain",
    "PLE": "no invisible characters",
    "ANN": "every argument has a type",
    "SLF001": "nobody reaches into another object",
    "PLC0415": "imports stand at the top: inside a function they hide a cycle of layers",
    "PLW0603": "no switch of the process can be turned",
    "TID251": "numbers are drawn by hash alone, and nothing is compiled",
    "NPY002": "no generator of the process",
}


@pytest.mark.parametrize("rule", RUFF)
def test_ruff_asks_for_what_the_findings_ask(rule: str) -> None:
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert rule in lint["select"] and rule not in lint["ignore"]
    for places, ignored in lint["per-file-ignores"].items():
        assert (
            rule not in ignored or rule == "PLC0415" or not places.startswith(("simic", "flows"))
        ), places


# --- what ruff has no rule for ---

# What the design has no place for, and the finding that would come back with it.
ABSENT = {
    "GradScaler": "precisions with a scaler need one per host and an order of unscaling; we use float32 and bfloat16",
    "empty_cache": "frees nothing that is used, and stalls the device",
    "pin_memory": "the data sets live on the device; what else goes there goes by simic.transfer",
    "record_stream": "everything runs on one stream",
    "Stream": "everything runs on one stream",
    "profiler": "phases are timed by the clock, on any device",
    "_orig_mod": "nobody unwraps a compiled module by its private parts",
    "shapley": "what a seed is worth is what leaving it out costs",
    "torch.compile": "which seed runs changes from step to step, so every mix of them would be compiled for itself",
}
HOME = {"pin_memory": "simic/transfer.py"}


@pytest.mark.parametrize("absent", ABSENT)
def test_what_the_design_has_no_place_for_is_absent(absent: str) -> None:
    places = [
        at(name, node) for name, node in every(ast.Attribute) if absent in (node.attr, dotted(node))
    ]
    places += [at(name, node) for name, node in every(ast.Name) if node.id == absent]
    places += [at(name, node) for name, node in every(ast.alias) if absent in node.name.split(".")]
    assert [place for place in places if place.partition(":")[0] != HOME.get(absent)] == [], ABSENT[
        absent
    ]


def test_nothing_depends_on_the_salt_of_hash_or_on_what_happens_to_be_defined() -> None:
    """``hash`` of a string differs between processes; ``locals`` finds values of an earlier turn of a loop."""
    forbidden = {"hash", "locals", "globals", "vars", "eval", "exec", "compile"}
    called = [(name, node) for name, node in every(ast.Call) if dotted(node.func) in forbidden]
    # vars(x) of a given object lists its fields; without an argument it is locals().
    assert [
        at(name, node) for name, node in called if not (dotted(node.func) == "vars" and node.args)
    ] == []


# Set while a stage may be stopped, and put back: there is no other way to see what Python drops.
SWITCHED = ("simic/training/interrupts.py", "sys.unraisablehook")


def test_no_switch_of_the_process_can_be_turned() -> None:
    """A module's variables are constants; libraries are configured in one place."""
    places = set()
    for name, nodes in NODES.items():
        imports = [
            alias
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        ]
        modules = {(alias.asname or alias.name).split(".")[0] for alias in imports}
        for node in nodes:
            stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if (
                stored
                and dotted(node).split(".")[0] in modules
                and (name, dotted(node)) != SWITCHED
            ):
                places.add(name)
    assert places <= {
        "simic/training/machine.py",
        "flows/up.py",
        "simic/pipeline/dvc_params.py",
    }  # torch; honcho's patience with its children


CHANGES = {"update", "pop", "popitem", "clear", "remove", "discard", "sort", "reverse"}
CHANGES |= {"append", "add", "setdefault", "extend", "insert"}


def test_no_object_changes_a_table_of_its_module() -> None:
    """Registries are filled at import; no object leaves anything there for the next run."""
    for name, tree in TREES.items():
        assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        targets = [
            (node.targets[0] if isinstance(node, ast.Assign) else node.target, node.value)
            for node in assigned
        ]
        mutable = ast.Dict | ast.List | ast.Set | ast.Call
        tables = {
            target.id
            for target, value in targets
            if isinstance(target, ast.Name) and isinstance(value, mutable)
        }
        methods = [
            statement
            for node in tree.body
            if isinstance(node, ast.ClassDef)
            for statement in node.body
        ]
        for node in (node for method in methods for node in ast.walk(method)):
            changed = (
                node.value
                if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
                else None
            )
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in CHANGES
            ):
                changed = node.func.value
            assert changed is None or dotted(changed) not in tables, at(name, node)


def test_devices_are_compared_by_type() -> None:
    """``device == "cuda"`` is False for cuda:1 and for an object; a word of params or a record is a word."""
    for name, node in every(ast.Compare):
        sides = [node.left, *node.comparators]
        if any(isinstance(side, ast.Constant) and side.value in ("cuda", "cpu") for side in sides):
            assert any(
                dotted(side).endswith((".type", "runtime.device", "machine.device"))
                for side in sides
            ), at(name, node)


def test_packages_offer_only_their_own() -> None:
    """Every name has one place; a package that lists the names of another goes stale. Private names stay at home."""
    for name, node in every(ast.ImportFrom):
        assert not [alias.name for alias in node.names if alias.name.startswith("_")], at(
            name, node
        )
        if name.endswith("__init__.py") and (node.module or "").startswith("simic"):
            assert (node.module or "").startswith(
                name.removesuffix("/__init__.py").replace("/", ".")
            ), at(name, node)


# --- names ---

ENTRY_POINT = re.compile(r"simic[\w.]*:([A-Za-z_]\w*)")
CALLED_BY_LIBRARIES = ["_load_pyfunc"]  # by MLflow
REGISTER_NOTHING = {
    *(
        "property",
        "staticmethod",
        "classmethod",
        "abstractmethod",
        "contextmanager",
        "cache",
        "lru_cache",
        "no_grad",
    ),
    "dataclass",
}
CLASSES = {node.name for _, node in every(ast.ClassDef)}


def _uses() -> Counter[str]:
    """Return how often each name is read, in the source, the benchmarks and the pages a user reads."""
    counts: Counter[str] = Counter()
    for tree in (
        *TREES.values(),
        *(ast.parse(path.read_text()) for path in (ROOT / "benchmarks").rglob("*.py")),
    ):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                counts[node.id] += 1
            elif isinstance(node, ast.Attribute):
                counts[node.attr] += 1
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                counts.update(ENTRY_POINT.findall(node.value))
    templates = (ROOT / "simic" / "audit" / "templates").iterdir()
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *templates):
        counts.update(re.findall(r"\w+", page.read_text(encoding="utf-8")))
    return counts


def _registers(node: ast.AST) -> bool:
    """Return whether a decorator hands the thing on to somebody who calls it."""
    decorators = getattr(node, "decorator_list", [])
    names = {
        dotted(decorator.func if isinstance(decorator, ast.Call) else decorator).split(".")[-1]
        for decorator in decorators
    }
    return bool(names - REGISTER_NOTHING)


def _defined(name: str) -> Iterator[ast.stmt]:
    """Yield the top-level definitions of a file and methods, except what a decorator registers or a library calls."""
    for node in TREES[name].body:
        if isinstance(
            node, (*FUNCTIONS, ast.ClassDef, ast.Assign, ast.AnnAssign)
        ) and not _registers(node):
            yield node
        if isinstance(node, ast.ClassDef):
            bases = {dotted(base).split(".")[-1] for base in node.bases}
            if not bases - {"Protocol", "ABC", "Generic", "NamedTuple", *CLASSES}:
                yield from (
                    statement
                    for statement in node.body
                    if isinstance(statement, FUNCTIONS) and not _registers(statement)
                )


def test_nothing_is_defined_that_nobody_uses() -> None:
    """Not even by a test alone: a helper that only its test calls is a helper that nothing calls."""
    counts = _uses() + Counter(CALLED_BY_LIBRARIES)
    unused = {}
    for name in TREES:
        for node in _defined(name):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                names = [node.name]
            else:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                # A tuple of modules is there for what their import does.
                imports = isinstance(node.value, ast.Tuple) and all(
                    isinstance(x, ast.Name) for x in node.value.elts
                )
                names = [x.id for x in targets if isinstance(x, ast.Name) and not imports]
            unused |= {
                definition: at(name, node)
                for definition in names
                if not counts[definition] and not definition.startswith("__")
            }
    assert unused == {}


def test_a_class_name_means_one_thing() -> None:
    """Nor does a record bear the name of a section of the params."""
    names = Counter(node.name for name, node in every(ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
    sections = {
        name
        for name, kind in vars(params).items()
        if isinstance(kind, type) and issubclass(kind, params.Tree)
    }
    for name, node in every(ast.ClassDef):
        words = {dotted(base).split(".")[-1] for base in node.bases} | {
            dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
            for decorator in node.decorator_list
        }
        record = bool(words & {"BaseModel", "Frozen", "Row", "NamedTuple", "dataclass"})
        assert not (record and node.name in sections) or name == "simic/params.py", at(name, node)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function after its docstring."""
    first = (
        function.body[1]
        if ast.get_docstring(function) and len(function.body) > 1
        else function.body[0]
    )
    return (function.end_lineno or 0) - first.lineno + 1


def test_functions_and_files_can_be_read_at_one_sitting() -> None:
    """A docstring and its list of arguments make no function long."""
    long = [at(name, node) for name, node in every(FUNCTIONS) if body_lines(node) >= 60]
    assert long == []
    assert [name for name, text in SOURCES.items() if text.count("\n") > 800] == []
    [loop] = [
        node
        for _, node in every(ast.FunctionDef, "simic/training/trainer.py")
        if node.name == "train"
    ]
    assert (loop.end_lineno or 0) - loop.lineno < 30  # the loop is the table of contents


def test_protocols_say_what_they_carry() -> None:
    """``Any`` only as the value of a mapping whose keys are the caller's."""
    for name, node in every(ast.ClassDef):
        if "Protocol" not in {
            dotted(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases
        }:
            continue
        mappings = [
            part
            for part in ast.walk(node)
            if isinstance(part, ast.Subscript) and dotted(part.value) == "dict"
        ]
        inside = {id(inner) for part in mappings for inner in ast.walk(part)}
        bare = [part for part in ast.walk(node) if dotted(part) == "Any" and id(part) not in inside]
        assert [at(name, part) for part in bare] == []


def test_heads_are_listed_once() -> None:
    """Only the table of envs/actions.py names several heads in one list; all others derive theirs."""
    [action] = [
        node
        for _, node in every(ast.ClassDef, "simic/growth/life/vocabulary.py")
        if node.name == "Action"
    ]
    heads = {node.target.id for node in action.body if isinstance(node, ast.AnnAssign)}
    assert len(heads) == 8
    for name, node in every((ast.Tuple, ast.List, ast.Set)):
        words = {element.value for element in node.elts if isinstance(element, ast.Constant)}
        assert len(words & heads) < 3 or name == "simic/envs/actions.py", at(name, node)


# --- numbers, errors, output ---


def test_an_error_about_data_is_never_answered_with_other_data() -> None:
    """Every handler in the data package raises: there is no synthetic stand-in for a file that is missing."""
    for name, node in every(ast.ExceptHandler, "simic/data/"):
        assert any(isinstance(inner, ast.Raise) for inner in ast.walk(node)), at(name, node)


DRAWS = {
    f"torch.{name}"
    for name in ("rand", "randn", "randint", "randperm", "normal", "multinomial", "bernoulli")
}


def test_torch_draws_only_where_a_module_is_built() -> None:
    """There it runs inside a fork of the generator; all other numbers are drawn by hash."""
    for name, node in every(ast.Call):
        if dotted(node.func) in DRAWS:
            around = [
                definition
                for _, definition in every(ast.ClassDef, name)
                if definition.lineno < node.lineno <= definition.end_lineno
            ]
            assert any(
                "Module" in dotted(base) for definition in around for base in definition.bases
            ), at(name, node)


# Numbers that say nothing but themselves: identities, halves, percentages, and guards of a division.
SPEAKING_FOR_THEMSELVES = {
    "simic/agent/": (float, {0.0, 0.5, 1.0, 2.0, 1e-8, 1e-12}),
    "simic/audit/checks/": (int | float, {0, 1, 2, 100, 1e-12, 1e-30}),
}


@pytest.mark.parametrize("folder", SPEAKING_FOR_THEMSELVES)
def test_there_are_no_unnamed_numbers(folder: str) -> None:
    """Limits and rates are constants of a module, with their source, or params."""
    kind, allowed = SPEAKING_FOR_THEMSELVES[folder]
    for name, function in every(FUNCTIONS, folder):
        for node in ast.walk(function):
            if isinstance(node, ast.Constant) and isinstance(node.value, kind):
                assert node.value in allowed, f"{at(name, node)} {node.value}"


# Pages of the documentation, and the name of a package.
PRINTS_ITS_OWN = ("simic/envs/observations.py", "simic/__main__.py")


def test_what_is_printed_does_nothing_to_a_terminal() -> None:
    for name, node in every(ast.Call):
        if dotted(node.func) == "print" and not name.startswith(PRINTS_ITS_OWN):
            functions = {dotted(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
            assert "printable" in functions or all(
                isinstance(part, ast.Constant) for part in node.args
            ), at(name, node)
