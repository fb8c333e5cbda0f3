"""Rules that every file of the source keeps; each closes a kind of defect that the earlier system had (findings.md)."""

import ast
import re
from collections import Counter

import pytest
from source_trees import FUNCTIONS, ROOT, SOURCES, TREES, at, dotted, every

from simic import params

# What the design has no place for, and the finding that would come back with it.
ABSENT = {
    "GradScaler": "precisions with a scaler need one per host and an order of unscaling; we use float32 and bfloat16",
    "empty_cache": "frees nothing that is used, and stalls the device",
    "pin_memory": "the data sets live on the device; what else goes there goes by simic.transfer",
    "record_stream": "everything runs on one stream",
    "Stream": "everything runs on one stream",
    "profiler": "phases are timed by the clock, on any device",
    "_orig_mod": "whoever compiles keeps the module that was compiled",
}
HOME = {"pin_memory": "simic/transfer.py"}


@pytest.mark.parametrize("absent", ABSENT)
def test_what_the_design_has_no_place_for_is_absent(absent: str) -> None:
    named = [at(name, node) for name, node in every(ast.Attribute) if node.attr == absent]
    named += [at(name, node) for name, node in every(ast.Name) if node.id == absent]
    named += [at(name, node) for name, node in every(ast.alias) if absent in node.name.split(".")]
    assert [place for place in named if place.partition(":")[0] != HOME.get(absent)] == [], ABSENT[absent]


def test_nothing_depends_on_the_salt_of_hash_or_on_what_happens_to_be_defined() -> None:
    """``hash`` of a string differs between processes; ``locals`` finds values of an earlier turn of a loop."""
    forbidden = {"hash", "locals", "globals", "vars", "eval", "exec", "compile"}
    called = [(name, node) for name, node in every(ast.Call) if dotted(node.func) in forbidden]
    # vars(x) of a given object lists its fields; without an argument it is locals().
    assert [at(name, node) for name, node in called if not (dotted(node.func) == "vars" and node.args)] == []


# Set while a stage may be stopped, and put back: there is no other way to see what Python drops.
SWITCHED = ("simic/training/interrupts.py", "sys.unraisablehook")


def test_no_switch_of_the_process_can_be_turned() -> None:
    """A module's variables are constants; libraries are configured in one place."""
    assert [at(name, node) for name, node in every(ast.Global)] == []
    places = set()
    for name, tree in TREES.items():
        imported = {(a.asname or a.name).split(".")[0] for n, x in every(ast.Import, name) for a in x.names}
        imported |= {a.asname or a.name for n, x in every(ast.ImportFrom, name) for a in x.names}
        for node in ast.walk(tree):
            stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if stored and dotted(node).split(".")[0] in imported and (name, dotted(node)) != SWITCHED:
                places.add(name)
    assert places <= {"simic/training/machine.py"}


def _module_tables(tree: ast.Module) -> set[str]:
    """Names of a module that hold something that can be changed."""
    tables = set()
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        mutable = isinstance(getattr(node, "value", None), ast.Dict | ast.List | ast.Set | ast.Call)
        tables |= {target.id for target in targets if isinstance(target, ast.Name) and mutable}
    return tables


SHRINKS = {"update", "pop", "popitem", "clear", "remove", "discard", "sort", "reverse"}
GROWS = {"append", "add", "setdefault", "extend", "insert"}


def test_tables_of_a_module_are_registries_that_only_grow() -> None:
    """Filled by functions that are called at import; no object leaves anything there for the next run."""
    for name, tree in TREES.items():
        tables = _module_tables(tree)
        methods = [each for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for each in node.body]
        of_objects = {id(inner) for method in methods for inner in ast.walk(method)}
        for node in ast.walk(tree):
            stored = (
                isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and dotted(node.value) in tables
            )
            deleted = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Del) and dotted(node.value) in tables
            called = node.func if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
            changed = called.attr if called and dotted(called.value) in tables else ""
            assert not deleted and changed not in SHRINKS, at(name, node)
            assert not ((stored or changed in GROWS) and id(node) in of_objects), at(name, node)


def test_nothing_is_compiled() -> None:
    """Which seed runs changes from step to step, so every mix of them would be compiled for itself."""
    assert not [name for name, node in every(ast.Attribute) if dotted(node) == "torch.compile"]


def test_devices_are_compared_by_type() -> None:
    """``device == "cuda"`` is False for cuda:1 and for an object; only the word of the params is a word."""
    for name, node in every(ast.Compare):
        sides = [node.left, *node.comparators]
        if any(isinstance(side, ast.Constant) and side.value in ("cuda", "cpu") for side in sides):
            others = {dotted(side) for side in sides}
            by_type = any(other.endswith(".type") for other in others)
            assert by_type or any(other.endswith("runtime.device") for other in others), at(name, node)
    for name, node in every(ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("startswith", "find"):
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            assert not {"cuda", "cpu", "cuda:"} & set(words), at(name, node)


NAMED_TUPLE_API = {"_fields", "_asdict", "_replace", "_make"}


def test_nobody_reaches_into_another_object() -> None:
    """Not into a compiled module, not into a normaliser on resume."""
    for name, node in every(ast.Attribute):
        private = node.attr.startswith("_") and not node.attr.startswith("__") and node.attr not in NAMED_TUPLE_API
        if private and dotted(node.value) not in ("self", "cls"):
            modules = {alias.asname or alias.name for _, each in every(ast.Import, name) for alias in each.names}
            assert dotted(node.value) in modules, at(name, node)
    for name, node in every(ast.ImportFrom):
        assert not [alias.name for alias in node.names if alias.name.startswith("_")], at(name, node)


ENTRIES = {
    "simic/cli.py",
    "simic/study/study.py",
    *(f"simic/pipeline/{name}.py" for name in ("stages", "engine", "up", "doctor")),
}


def test_simic_is_imported_at_the_top_except_where_a_process_begins() -> None:
    """An import inside a function hides a cycle of layers and costs a look-up in every call."""
    for name, function in every(FUNCTIONS):
        for node in ast.walk(function):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("simic"):
                # A package's own name, when somebody asks for it; a program of its own.
                on_demand = function.name in ("__getattr__", "main")
                assert name in ENTRIES or name.startswith("flows/") or on_demand, at(name, node)


def test_packages_offer_only_their_own() -> None:
    """Every name has one place; a package that lists the names of another goes stale."""
    for name, tree in TREES.items():
        if name.endswith("__init__.py"):
            assert ast.get_docstring(tree), name
            own = name.removesuffix("/__init__.py").replace("/", ".")
            offered = [node.module or "" for _, node in every(ast.ImportFrom, name)]
            assert [module for module in offered if module.startswith("simic") and not module.startswith(own)] == []


ENTRY_POINT = re.compile(r"simic[\w.]*:[A-Za-z_]\w*")


def _uses() -> Counter[str]:
    """How often each name is read or imported, in the source, the benchmarks and the pages a user reads."""
    used: Counter[str] = Counter()
    trees = [*TREES.values(), *(ast.parse(path.read_text()) for path in (ROOT / "benchmarks").rglob("*.py"))]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            used[node.id] += 1
        elif isinstance(node, ast.Attribute):
            used[node.attr] += 1
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ENTRY_POINT.fullmatch(node.value):
            used[node.value.split(":")[1]] += 1
    templates = (ROOT / "simic" / "audit" / "templates").iterdir()
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *templates):
        used.update(_words(page.read_text(encoding="utf-8")))
    return used


def _words(text: str) -> list[str]:
    return "".join(char if char.isalnum() or char == "_" else " " for char in text).split()


PLAIN = {"property", "staticmethod", "classmethod", "abstractmethod", "contextmanager", "cache", "lru_cache", "no_grad"}


CLASSES = {node.name for _, node in every(ast.ClassDef)}


def _registers(node: ast.AST) -> bool:
    """Whether a decorator hands the thing on to somebody who calls it."""
    decorators = getattr(node, "decorator_list", [])
    names = {dotted(each.func if isinstance(each, ast.Call) else each).split(".")[-1] for each in decorators}
    return bool(names - PLAIN - {"dataclass"})


def _defined() -> list[tuple[str, str]]:
    """Top-level names and methods with where they are, except those that are registered by a decorator."""
    found = []
    for name, tree in TREES.items():
        modules = {
            a.asname or a.name.split(".")[-1] for n, x in every((ast.Import, ast.ImportFrom), name) for a in x.names
        }
        for node in tree.body:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not _registers(node):
                found.append((node.name, at(name, node)))
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, FUNCTIONS) and not _registers(each)]
                bases = {dotted(base).split(".")[-1] for base in node.bases}
                # What a library's base class calls by name is used by the library.
                own = not bases - {"Protocol", "ABC", "Generic", "NamedTuple", *CLASSES}
                found += [(each.name, at(name, each)) for each in methods if own]
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                listed = isinstance(node.value, ast.Tuple) and {dotted(x) for x in node.value.elts} <= modules
                # A tuple of imported modules is there for the import itself.
                found += [(x.id, at(name, node)) for x in targets if isinstance(x, ast.Name) and not listed]
    return [(each, where) for each, where in found if not each.startswith("__")]


def test_nothing_is_defined_that_nobody_uses() -> None:
    """Not even by a test alone: a helper that only its test calls is a helper that nothing calls."""
    used = _uses()
    assert {name: where for name, where in _defined() if not used[name]} == {}


def test_no_import_is_unused() -> None:
    for name, tree in TREES.items():
        read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        quoted = " ".join(x.value for x in ast.walk(tree) if isinstance(x, ast.Constant) and isinstance(x.value, str))
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)):
            for alias in node.names:
                known = (alias.asname or alias.name).split(".")[0]
                assert known in read or known in _words(quoted) or "noqa: F401" in SOURCES[name], (name, known)


# The same things a second time: it may share their names, and nothing else.
REFERENCE = ("simic/audit/reference/", "simic/audit/world/")


def test_a_class_name_means_one_thing() -> None:
    for mirrored in (False, True):
        names = Counter(node.name for name, node in every(ast.ClassDef) if name.startswith(REFERENCE) is mirrored)
        assert [name for name, count in names.items() if count > 1] == []


def test_no_record_bears_the_name_of_a_section_of_the_params() -> None:
    """Two bundles of fields of one name in two packages get mixed up."""
    sections = {name for name, kind in vars(params).items() if isinstance(kind, type) and issubclass(kind, params.Tree)}
    for name, node in every(ast.ClassDef):
        plain = {dotted(base).split(".")[-1] for base in node.bases} | {
            dotted(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list
        }
        record = bool(plain & {"BaseModel", "Frozen", "Row", "NamedTuple", "dataclass"})
        assert not (record and node.name in sections) or name == "simic/params.py", at(name, node)


def test_functions_and_files_can_be_read_at_one_sitting() -> None:
    long = [at(name, node) for name, node in every(FUNCTIONS) if (node.end_lineno or 0) - node.lineno >= 60]
    assert long == []
    assert [name for name, text in SOURCES.items() if text.count("\n") > 800] == []
    [loop] = [node for _, node in every(ast.FunctionDef, "simic/training/trainer.py") if node.name == "train"]
    assert (loop.end_lineno or 0) - loop.lineno < 30  # the loop is the table of contents


def test_every_argument_has_a_type_and_every_public_name_a_sentence() -> None:
    for name, node in every(FUNCTIONS):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        arguments += [each for each in (node.args.vararg, node.args.kwarg) if each]
        bare = [each.arg for each in arguments if each.annotation is None and each.arg not in ("self", "cls")]
        assert bare == [], at(name, node)
        assert node.returns is not None or node.name == "__init__", at(name, node)
    for name, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
                assert ast.get_docstring(node), at(name, node)


def test_unions_are_written_one_way() -> None:
    annotations = [node.annotation for _, node in every((ast.arg, ast.AnnAssign)) if node.annotation is not None]
    annotations += [node.returns for _, node in every(FUNCTIONS) if node.returns is not None]
    for annotation in annotations:
        assert not {"Optional", "Union"} & {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}


def test_protocols_say_what_they_carry() -> None:
    """``Any`` only as the value of a mapping whose keys are the caller's."""
    for name, node in every(ast.ClassDef):
        if "Protocol" not in {dotted(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases}:
            continue
        mappings = [each for each in ast.walk(node) if isinstance(each, ast.Subscript) and dotted(each.value) == "dict"]
        inside = {id(inner) for each in mappings for inner in ast.walk(each)}
        bare = [each for each in ast.walk(node) if dotted(each) == "Any" and id(each) not in inside]
        assert [at(name, each) for each in bare] == []


def test_text_is_plain() -> None:
    for name, text in SOURCES.items():
        for number, line in enumerate(text.splitlines(), 1):
            assert line == line.rstrip() and "\t" not in line, f"{name}:{number}"
            assert all(char.isprintable() for char in line), f"{name}:{number}"


def test_an_error_about_data_is_never_answered_with_other_data() -> None:
    """Every handler in the data package raises: there is no synthetic stand-in for a file that is missing."""
    for name, node in every(ast.ExceptHandler, "simic/data/"):
        assert any(isinstance(inner, ast.Raise) for inner in ast.walk(node)), at(name, node)


DRAWS = {f"torch.{name}" for name in ("rand", "randn", "randint", "randperm", "normal", "multinomial", "bernoulli")}


def test_numbers_are_drawn_by_hash_alone() -> None:
    """torch's own draws only where a module is built inside a fork of the generator; numpy's and Python's nowhere."""
    for name, node in every(ast.Call):
        called = dotted(node.func)
        assert not called.startswith(("np.random", "numpy.random", "random.")), at(name, node)
        if called in DRAWS:
            module = [
                each for _, each in every(ast.ClassDef, name) if each.lineno < node.lineno <= (each.end_lineno or 0)
            ]
            assert any("Module" in dotted(base) for each in module for base in each.bases), at(name, node)


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


NUMBERS = re.compile(r"(?<![\w.])\d[\w.-]*|\b(?:half|quarter|twice|two|three|four|five|six|seven|eight|nine|ten)\b")


def test_a_limit_of_a_check_stands_once() -> None:
    """Its words take their numbers from the constants that its code compares with, and its threshold names them all."""
    for name, check in every(ast.ClassDef, "simic/audit/checks/"):
        assigned = {dotted(each.targets[0]): each.value for each in check.body if isinstance(each, ast.Assign)}
        formats = [each.format_spec for each in ast.walk(check) if isinstance(each, ast.FormattedValue)]
        exempt = {id(inner) for each in (*formats, assigned.get("source")) if each for inner in ast.walk(each)}
        for node in ast.walk(check):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in exempt:
                assert set(NUMBERS.findall(node.value)) <= {"0", "1"}, f"{at(name, node)} {node.value}"
        limits = {each.id for each in ast.walk(check) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        said = {each.id for each in ast.walk(assigned.get("threshold", check)) if isinstance(each, ast.Name)}
        assert {limit for limit in limits if limit.isupper()} <= said, at(name, check)


def test_heads_are_listed_once() -> None:
    """Only the table of envs/actions.py names several heads in one list; all others derive theirs."""
    [action] = [node for _, node in every(ast.ClassDef, "simic/growth/life/vocabulary.py") if node.name == "Action"]
    heads = {node.target.id for node in action.body if isinstance(node, ast.AnnAssign)}
    assert len(heads) == 8
    for name, node in every((ast.Tuple, ast.List, ast.Set)):
        words = {each.value for each in node.elts if isinstance(each, ast.Constant)}
        own = name == "simic/envs/actions.py" or name.startswith(REFERENCE)
        assert len(words & heads) < 3 or own, at(name, node)


# Pages of the documentation, the name of a package, and the self-test, whose runs are its own.
PRINTS_ITS_OWN = ("simic/envs/observations.py", "simic/audit/metrics_page.py", "simic/__main__.py", "simic/selftest")


def test_what_is_printed_does_nothing_to_a_terminal() -> None:
    for name, node in every(ast.Call):
        if dotted(node.func) == "print" and not name.startswith(PRINTS_ITS_OWN):
            said = {dotted(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}
            assert "printable" in said or all(isinstance(each, ast.Constant) for each in node.args), at(name, node)
