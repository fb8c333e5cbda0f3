"""Count the small defects that the tests notice, in a random sample of mutants of agent, environments and trainer.

    python -m benchmarks.mutants [--sample 300] [--rng-seed 1] [--jobs 2] [simic/envs ...]

A mutant is one small change of one module. Its tests are those of the mirrored package (``tests/envs`` for
``simic/envs``) that run the changed line, the mirrored file first, then the quickest. The libraries are imported once;
each mutant is a fork of that process, and nothing on disk changes. A mutant whose tests take far too long is killed too
(counted apart). Survivors are written to benchmarks/results/mutants.json, where a person judges each of them; a
judgement is kept as long as the line and its mutation stay the same.

mutmut and cosmic-ray start pytest, and so torch, anew for each mutant or change the files, and choose no tests by line.
"""

import argparse
import ast
import copy
import importlib
import importlib.machinery
import importlib.util
import itertools
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "COVERAGE_CORE": "ctrace",
}  # before torch; a tracer that knows contexts

import coverage
import pytest

ROOT = Path(__file__).parents[1]
SUBJECTS = ("simic/agent", "simic/envs", "simic/training/trainer.py")
RESULTS = ROOT / "benchmarks/results/mutants.json"
LIBRARIES = (
    "torch",
    "numpy",
    "scipy.stats",
    "gymnasium",
    "pydantic",
    "sklearn.datasets",
    "safetensors",
)
# times what the tests took unmutated, and at least
LIMIT_FACTOR = 5
LIMIT_SECONDS = 60
# Exit code of a process that could not run tests at all.
FAILED = 70
# Coverage's context of what is run while modules are imported.
EVERYWHERE = ""

PAIRS = (
    "Lt LtE",
    "Gt GtE",
    "Eq NotEq",
    "Is IsNot",
    "In NotIn",
    "And Or",
    "Add Sub",
    "Mult Div",
    "BitAnd BitOr",
)
PAIRS += ("min max", "minimum maximum", "amin amax", "any all", "argmin argmax")
OPPOSITE = {
    name: opposite for pair in map(str.split, PAIRS) for name, opposite in (pair, pair[::-1])
}
OPPOSITE |= {"FloorDiv": "Mult", "Pow": "Mult"}


@dataclass(frozen=True)
class Mutant:
    """One change of a file; ``lines`` are those of the statement it is in, ``text`` the whole module changed."""

    file: str
    line: int
    lines: range
    original: str
    mutated: str
    text: str

    @property
    def package(self) -> str:
        return self.file.split("/")[1]


def mutants_of(root: Path, file: str) -> list[Mutant]:
    # In bytes, as ast counts columns.
    source = (root / file).read_bytes()
    starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    mutants = []
    for node, lines, new in _changes(ast.parse(source), range(1, 2)):
        assert (
            node.end_lineno is not None and node.end_col_offset is not None
        )  # as in all that is parsed
        first = starts[node.lineno - 1]
        last = starts[node.end_lineno]
        begin = first + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        changed = source[first:begin] + new.encode() + source[end:last]
        original, mutated = (
            " ".join(part.decode().split()) for part in (source[first:last], changed)
        )
        text = (source[:first] + changed + source[last:]).decode()
        # A change that is no Python would count as noticed.
        compile(text, file, "exec")
        mutants.append(Mutant(file, node.lineno, lines, original, mutated, text))
    return mutants


def _changes(node: ast.AST, lines: range) -> Iterator[tuple[ast.expr | ast.stmt, range, str]]:
    """Yield what is replaced, the lines of its statement (of a compound one its head), and the replacement.

    Left alone: annotations, decorators, docstrings, messages, assertions (``strict=`` is one).
    """
    # Texts decide nothing that a test has to see.
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    words = docstring or (
        isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__")
    )
    if words or isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return
    if isinstance(node, ast.stmt):
        body = getattr(node, "body", None)
        lines = range(
            node.lineno,
            max(node.lineno + 1, body[0].lineno) if body else (node.end_lineno or 0) + 1,
        )
    if isinstance(node, ast.expr | ast.stmt):
        yield from ((node, lines, new) for new in _replacements(node))
    if isinstance(node, ast.If | ast.IfExp):
        yield node.test, lines, f"(not ({ast.unparse(node.test)}))"
    # Whether it is raised was changed above; the rest of it is its message.
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not (
                    isinstance(child, ast.keyword) and child.arg == "strict"
                ):
                    yield from _changes(child, lines)


def _replacements(node: ast.expr | ast.stmt) -> Iterator[str]:
    def but(**changes: object) -> str:
        mutated = copy.copy(node)
        for name, value in changes.items():
            setattr(mutated, name, value)
        return f"({ast.unparse(mutated)})" if isinstance(node, ast.expr) else ast.unparse(mutated)

    # Chains of comparisons are left alone: their operators share operands.
    op = (
        node.ops[0]
        if isinstance(node, ast.Compare) and len(node.ops) == 1
        else getattr(node, "op", None)
    )
    if (mutated := OPPOSITE.get(type(op).__name__)) is not None:
        new = getattr(ast, mutated)()
        yield but(ops=[new]) if isinstance(node, ast.Compare) else but(op=new)
    elif isinstance(node, ast.UnaryOp):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield str(1 - node.value if node.value in (0, 1) else node.value + 1)
    elif isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
        yield "return None"
    elif isinstance(node, ast.Call):
        yield from _calls(node, but)
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    gone = isinstance(node, ast.AugAssign | ast.Raise | ast.Break | ast.Continue)
    # What is done for its effect is left out.
    if call or gone or isinstance(target, ast.Attribute | ast.Subscript):
        yield "pass"


def _calls(node: ast.Call, but: Callable[..., str]) -> Iterator[str]:
    """Yield a call of the opposite function, without a keyword, or with one argument in another's place."""
    name = (
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    )
    if name in OPPOSITE:
        call = copy.copy(node.func)
        setattr(call, "attr" if isinstance(call, ast.Attribute) else "id", OPPOSITE[name])
        yield but(func=call)
    for index, keyword in enumerate(node.keywords):
        if keyword.arg != "strict":
            yield but(keywords=node.keywords[:index] + node.keywords[index + 1 :])
    for index, (first_argument, second_argument) in enumerate(
        zip(node.args, node.args[1:] + node.args[:1], strict=True)
    ):
        plain = not any(
            isinstance(argument, ast.Starred | ast.Constant)
            for argument in (first_argument, second_argument)
        )
        # Equal arguments in each other's place change nothing.
        if plain and ast.dump(first_argument) != ast.dump(second_argument):
            yield but(args=[*node.args[:index], second_argument, *node.args[index + 1 :]])


class Recorder:
    """A pytest plugin that records which test runs which lines, and its seconds. Lines of a shared fixture count for
    every test that uses it.
    """

    def __init__(self, files: list[str]) -> None:
        self.trace = coverage.Coverage(data_file=None, include=files, config_file=False)
        self.context = EVERYWHERE
        self.seconds = {}
        self.users = defaultdict(set)

    def switch(self, context: str) -> str:
        before = self.context
        self.context = context
        self.trace.switch_context(context)
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        for context in (item.nodeid, *map("fixture {}".format, item.fixturenames)):
            self.users[context].add(item.nodeid)
        started = time.perf_counter()
        before = self.switch(item.nodeid)
        result = yield
        self.switch(before)
        self.seconds[item.nodeid] = time.perf_counter() - started
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        # A fixture of a single test belongs to that test.
        shared = fixturedef.scope != "function"
        before = self.switch(f"fixture {fixturedef.argname}" if shared else self.context)
        result = yield
        self.switch(before)
        return result

    def tests_of(self, file: str) -> dict[int, set[str]]:
        """List the tests by line. A line that is run at import concerns every test that runs anything of the file, or
        every test where nothing of it is run later, as of a table.
        """
        contexts = self.trace.get_data().contexts_by_lineno(file)
        lines = {
            line: set().union(*(self.users[context] for context in tests_of_line))
            for line, tests_of_line in contexts.items()
        }
        anything = set().union(*lines.values()) or set(self.seconds)
        return {
            line: anything if EVERYWHERE in contexts[line] else tests
            for line, tests in lines.items()
        }


@dataclass(frozen=True)
class Tests:
    """Tests of one package: by file and line those that run it, and the seconds of each."""

    of: dict[str, dict[int, set[str]]]
    seconds: dict[str, float]

    @classmethod
    def record(cls, root: Path, package: str, files: list[str]) -> "Tests":
        """Run all tests once, in a process of its own; they have to pass.

        Args:
            root: of the project.
            package: folder of the tests.
            files: of the code, whose lines are recorded.
        """

        def work() -> int:
            recorder = Recorder([str(root / file) for file in files])
            # Before pytest imports the files: lines of the import count too.
            recorder.trace.start()
            code = pytest.main([*OPTIONS, package], [recorder])
            recorder.trace.stop()
            of = {file: recorder.tests_of(str(root / file)) for file in files}
            report.write_bytes(pickle.dumps(cls(of, recorder.seconds)))
            return int(code)

        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report"
            # In a process of its own: what these tests import must not be there for mutants.
            pid = fork(root, work, sys.stdout.fileno())
            if os.waitpid(pid, 0)[1]:
                sys.exit(f"{package}: the tests have to pass before mutants are tried on them")
            return pickle.loads(report.read_bytes())  # noqa: S301 - written by us

    def orders(self, mutant: Mutant) -> list[list[str]]:
        """List the mirrored file's tests of the changed statement, then all others, each quickest first."""
        lines = self.of[mutant.file]
        path = Path(mutant.file)
        chosen = set().union(*(lines.get(line, set()) for line in mutant.lines))
        mirrored = f"/test_{path.stem}.py:", f"/test_{path.parent.name}.py:"
        mirrored_tests = {test for test in chosen if any(name in test for name in mirrored)}
        # The mirrored file is likeliest to notice, and the first failure ends it.
        return [
            sorted(tests, key=self.seconds.__getitem__)
            for tests in (mirrored_tests, chosen - mirrored_tests)
            if tests
        ]


OPTIONS = [
    "-x",
    "-q",
    "--no-header",
    "--tb=line",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-p",
    "no:pytest_cov",
]


class Changed(importlib.machinery.SourceFileLoader):
    """Find one module and load another text for it."""

    text = ""

    def find_spec(self, name: str, path: object = None, target: object = None):
        return (
            importlib.util.spec_from_file_location(name, self.path, loader=self)
            if name == self.name
            else None
        )

    def get_code(self, fullname: str):
        return compile(self.text, self.path, "exec")


def fork(root: Path, work: Callable[[], int], output: int) -> int:
    """Do the work in a process and group of its own; return its id.

    Args:
        root: of the project, where it runs.
        work: returns the exit code.
        output: file descriptor that takes what it prints.
    """
    if pid := os.fork():
        return pid
    code = FAILED
    try:
        # A group, so that whatever a test starts can be ended with it.
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(root)
        sys.path.insert(0, str(root))
        code = work()
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        sys.stdout.flush()
        # Not sys.exit: what the parent does at its exit is not the child's to do.
        os._exit(code)


def try_out(root: Path, mutant: Mutant, orders: list[list[str]], temporary: Path) -> int:
    """Run the tests on a mutant; 0: all pass.

    Args:
        root: of the project.
        mutant: what is changed.
        orders: tests, in the order in which they run.
        temporary: folder of the tests' files.
    """
    name = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    changed = Changed(name, str(root / mutant.file))
    changed.text = mutant.text
    # First, so that the changed text is loaded by whatever imports the module.
    sys.meta_path.insert(0, changed)
    options = [*OPTIONS, f"--basetemp={temporary}"]
    for tests in orders:
        code = pytest.main([*options, *tests])
        # A name of a test may be made from what was changed: then all tests of its file run.
        if code == pytest.ExitCode.USAGE_ERROR:
            code = pytest.main(
                [*options, *dict.fromkeys(test.partition("::")[0] for test in tests)]
            )
        if code:
            return int(code)
    return 0


def try_all(root: Path, mutants: list[Mutant], tests: dict[str, Tests], jobs: int) -> list[str]:
    """Try every mutant, several at a time.

    Args:
        root: of the project.
        mutants: what is tried.
        tests: of each package.
        jobs: how many at a time.

    Returns:
        killed, timeout or survived, for each.
    """
    results = [""] * len(mutants)
    running = {}
    # From the last one back, since pop takes the last.
    waiting = list(enumerate(mutants))[::-1]
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        while waiting or running:
            while waiting and len(running) < jobs:
                index, mutant = waiting.pop()
                tests_of_package = tests[mutant.package]
                temporary = Path(folder) / str(index)
                orders = tests_of_package.orders(mutant)
                limit = max(
                    LIMIT_SECONDS,
                    LIMIT_FACTOR
                    * sum(tests_of_package.seconds[test] for part in orders for test in part),
                )
                pid = fork(root, lambda: try_out(root, mutant, orders, temporary), nowhere.fileno())  # noqa: B023 - at once
                running[pid] = index, time.monotonic() + limit
            time.sleep(0.02)
            # Looked at in turns: to wait for one would let others pass their limits.
            for pid, (index, deadline) in list(running.items()):
                finished, status = os.waitpid(pid, os.WNOHANG)
                late = not finished and time.monotonic() > deadline
                # A process that ran no tests says nothing of the mutant.
                if finished and os.waitstatus_to_exitcode(status) == FAILED:
                    sys.exit(f"{mutants[index].file}: the tests of a mutant could not be run")
                # A mutant may loop for ever.
                if late:
                    os.killpg(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                if finished or late:
                    del running[pid]
                    results[index] = "timeout" if late else "killed" if status else "survived"
                    shutil.rmtree(Path(folder) / str(index), ignore_errors=True)
                    tried = len(results) - results.count("")
                    print(
                        tried,
                        results[index],
                        mutants[index].file,
                        mutants[index].mutated,
                        flush=True,
                    )
    return results


def run(root: Path, subjects: list[str], sample: int, rng_seed: int, jobs: int) -> dict:
    """Score a random sample of mutants; list those that survived.

    Args:
        root: of the project.
        subjects: files and folders.
        sample: how many mutants.
        rng_seed: of the sample.
        jobs: how many at a time.
    """
    paths = [
        path
        for subject in subjects
        for path in (sorted((root / subject).rglob("*.py")) or [root / subject])
    ]
    files = [str(path.relative_to(root)) for path in paths]
    every = [mutant for file in files for mutant in mutants_of(root, file)]
    mutants = random.Random(rng_seed).sample(every, min(sample, len(every)))
    # By package, as tests are recorded once for all of its mutants.
    tests = {}
    for package in sorted({mutant.package for mutant in mutants}):
        files_of_package = [file for file in files if file.split("/")[1] == package]
        tests[package] = Tests.record(root, f"tests/{package}", files_of_package)
        # On the file with most tests, unchanged: other orders than pytest's own have to pass as well.
        most = max(
            files_of_package, key=lambda file: len(set().union(*tests[package].of[file].values()))
        )
        text = (root / most).read_text()
        unchanged = Mutant(most, 1, range(1, len(text)), "", "(unchanged)", text)
        if try_all(root, [unchanged], tests, 1) != ["survived"]:
            sys.exit(
                f"{package}: the tests fail without a mutation, one after the other from the quickest on"
            )
    started = time.monotonic()
    results = try_all(root, mutants, tests, jobs)
    counts = {result: results.count(result) for result in ("killed", "timeout", "survived")}
    survivors = [
        mutant for mutant, result in zip(mutants, results, strict=True) if result == "survived"
    ]
    survivors.sort(key=lambda mutant: (mutant.file, mutant.line))
    fields = ("file", "line", "original", "mutated")
    return {
        "rng_seed": rng_seed,
        "mutants": len(every),
        "sample": len(mutants),
        **counts,
        "score": round(1 - counts["survived"] / len(mutants), 4),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "survivors": [{name: getattr(survivor, name) for name in fields} for survivor in survivors],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subjects", nargs="*", default=SUBJECTS)
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--rng-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    # Before the forks, which then share them.
    for library in LIBRARIES:
        importlib.import_module(library)
    report = run(ROOT, options.subjects, options.sample, options.rng_seed, options.jobs)
    # By text: numbers of lines move with every change above them.
    key = ("file", "original", "mutated")
    old = json.loads(options.out.read_text())["survivors"] if options.out.exists() else []
    judged = {tuple(survivor[name] for name in key): survivor["judgement"] for survivor in old}
    for survivor in report["survivors"]:
        survivor["judgement"] = judged.get(tuple(survivor[name] for name in key), "")
    from benchmarks import (
        page,
    )  # not earlier: it imports of simic what mutants are still to be made of

    page.write_result(options.out, report)
    print(
        f"{report['score']:.1%} of {report['sample']} mutants were noticed; survivors: {options.out}"
    )


if __name__ == "__main__":
    main()
