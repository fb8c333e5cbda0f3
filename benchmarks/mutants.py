"""Count the small defects that the tests notice, in a random sample of mutants of agent, environments and trainer.

    python -m benchmarks.mutants [--sample 300] [--rng-seed 1] [--jobs 2] [simic/envs ...]

A mutant is one small change of one module, made in a copy of the checkout. Its tests are those of the mirrored package
(``tests/envs`` for ``simic/envs``), those of the mirrored file first. A mutant whose tests take far too long is killed
too (counted apart). Survivors are written to benchmarks/results/mutants.json, where a person judges each of them; a
judgement is kept as long as the line and its mutation stay the same.
"""

import ast
import copy
import itertools
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks import page

ROOT = Path(__file__).parents[1]
SUBJECTS = ("simic/agent", "simic/envs", "simic/training/trainer.py")
RESULTS = ROOT / "benchmarks/results/mutants.json"
LIMIT_FACTOR, LIMIT_SECONDS = 5, 60  # times what the tests took unmutated, and at least
KILLED, TIMEOUT, SURVIVED = "killed", "timeout", "survived"

PAIRS = ("Lt LtE", "Gt GtE", "Eq NotEq", "Is IsNot", "In NotIn", "And Or", "Add Sub", "Mult Div", "BitAnd BitOr")
PAIRS += ("min max", "minimum maximum", "amin amax", "any all", "argmin argmax")
OPPOSITE = {one: other for pair in map(str.split, PAIRS) for one, other in (pair, pair[::-1])}
OPPOSITE |= {"FloorDiv": "Mult", "Pow": "Mult"}


@dataclass(frozen=True)
class Mutant:
    """One change of a file; ``text`` is the whole module changed."""

    file: str
    line: int
    original: str
    mutated: str
    text: str

    @property
    def tests(self) -> list[list[str]]:
        """Return the mirrored files, then their whole package."""
        path = Path(self.file)
        package = f"tests/{path.parts[1]}"
        found = (ROOT.joinpath(package).rglob(f"test_{name}.py") for name in (path.stem, path.parent.name))
        own = [str(file.relative_to(ROOT)) for files in found for file in files]
        return [own, [package]] if own else [[package]]


def mutants_of(root: Path, file: str) -> list[Mutant]:
    source = (root / file).read_bytes()
    starts, found = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))], []
    for node, new in _changes(ast.parse(source)):
        assert node.end_lineno is not None and node.end_col_offset is not None  # as in all that is parsed
        first, last = starts[node.lineno - 1], starts[node.end_lineno]
        begin, end = first + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        changed = source[first:begin] + new.encode() + source[end:last]
        original, mutated = (" ".join(part.decode().split()) for part in (source[first:last], changed))
        text = (source[:first] + changed + source[last:]).decode()
        compile(text, file, "exec")
        found.append(Mutant(file, node.lineno, original, mutated, text))
    return found


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield what is replaced, and the replacement.

    Left alone: annotations, decorators, docstrings, messages, assertions (``strict=`` is one).
    """
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    words = docstring or (isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__"))
    if words or isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield from ((node, new) for new in _replacements(node))
    if isinstance(node, ast.If | ast.IfExp):
        yield node.test, f"(not ({ast.unparse(node.test)}))"
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not (isinstance(child, ast.keyword) and child.arg == "strict"):
                    yield from _changes(child)


def _replacements(node: ast.expr | ast.stmt) -> Iterator[str]:
    def but(**changes: object) -> str:
        other = copy.copy(node)
        for name, value in changes.items():
            setattr(other, name, value)
        return f"({ast.unparse(other)})" if isinstance(node, ast.expr) else ast.unparse(other)

    op = node.ops[0] if isinstance(node, ast.Compare) and len(node.ops) == 1 else getattr(node, "op", None)
    if (other := OPPOSITE.get(type(op).__name__)) is not None:
        new = getattr(ast, other)()
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
    if call or gone or isinstance(target, ast.Attribute | ast.Subscript):
        yield "pass"


def _calls(node: ast.Call, but: Callable[..., str]) -> Iterator[str]:
    """Yield a call of the opposite function, without a keyword, or with one argument in another's place."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    if name in OPPOSITE:
        other = copy.copy(node.func)
        setattr(other, "attr" if isinstance(other, ast.Attribute) else "id", OPPOSITE[name])
        yield but(func=other)
    for index, keyword in enumerate(node.keywords):
        if keyword.arg != "strict":
            yield but(keywords=node.keywords[:index] + node.keywords[index + 1 :])
    for index, (one, other) in enumerate(zip(node.args, node.args[1:] + node.args[:1], strict=True)):
        plain = not any(isinstance(each, ast.Starred | ast.Constant) for each in (one, other))
        if plain and ast.dump(one) != ast.dump(other):
            yield but(args=[*node.args[:index], other, *node.args[index + 1 :]])


def copy_checkout(root: Path, target: Path) -> None:
    """Copy the files that git knows, as they are now."""
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, target / name)


def run_tests(checkout: Path, tests: Sequence[str], limit: float | None = None) -> str:
    """Run tests in a copy of the checkout until the first fails; return what became of its mutant."""
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        cwd=checkout,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # so that what a test has started ends with it
    ) as process:
        try:
            return KILLED if process.wait(limit) else SURVIVED
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return TIMEOUT


def try_out(mutant: Mutant, checkout: Path, seconds: dict[str, float]) -> str:
    """Run the tests of a mutant, and put the file back."""
    target = checkout / mutant.file
    unchanged = target.read_bytes()
    limit = max(LIMIT_SECONDS, LIMIT_FACTOR * seconds[mutant.tests[-1][0]])
    try:
        target.write_text(mutant.text, encoding="utf-8")
        for tests in mutant.tests:
            if (found := run_tests(checkout, tests, limit)) != SURVIVED:
                return found
        return SURVIVED
    finally:
        target.write_bytes(unchanged)


def run(root: Path, subjects: Sequence[str], sample: int, rng_seed: int, jobs: int) -> dict:
    """Score a random sample of mutants of these files and folders; list those that survived."""
    paths = [path for subject in subjects for path in (sorted((root / subject).rglob("*.py")) or [root / subject])]
    every = [mutant for path in paths for mutant in mutants_of(root, str(path.relative_to(root)))]
    mutants = random.Random(rng_seed).sample(every, min(sample, len(every)))
    seconds, free = dict[str, float](), queue.SimpleQueue[Path]()
    with tempfile.TemporaryDirectory() as folder:
        for job in range(jobs):
            free.put(Path(folder) / str(job))
            copy_checkout(root, Path(folder) / str(job))
        started = time.monotonic()
        for package in sorted({mutant.tests[-1][0] for mutant in mutants}):
            begun = time.monotonic()
            if run_tests(Path(folder) / "0", [package]) != SURVIVED:
                sys.exit(f"{package}: the tests have to pass before mutants are tried on them")
            seconds[package] = time.monotonic() - begun

        def tried(mutant: Mutant) -> str:
            checkout = free.get()
            found = try_out(mutant, checkout, seconds)
            free.put(checkout)
            print(found, mutant.file, mutant.mutated, flush=True)
            return found

        with ThreadPoolExecutor(jobs) as pool:
            results = list(pool.map(tried, mutants))
    counts = {result: results.count(result) for result in (KILLED, TIMEOUT, SURVIVED)}
    survivors = [mutant for mutant, result in zip(mutants, results, strict=True) if result == SURVIVED]
    survivors.sort(key=lambda mutant: (mutant.file, mutant.line))
    told = ("file", "line", "original", "mutated")
    return {
        "rng_seed": rng_seed,
        "mutants": len(every),
        "sample": len(mutants),
        **counts,
        "score": round(1 - counts[SURVIVED] / len(mutants), 4),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "survivors": [{name: getattr(each, name) for name in told} for each in survivors],
    }


def main() -> None:
    parser = page.parser(__doc__, RESULTS)
    parser.add_argument("subjects", nargs="*", default=SUBJECTS)
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--rng-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    found = run(ROOT, given.subjects, given.sample, given.rng_seed, given.jobs)
    key = ("file", "original", "mutated")
    old = json.loads(given.out.read_text())["survivors"] if given.out.exists() else []
    judged = {tuple(each[name] for name in key): each["judgement"] for each in old}
    for each in found["survivors"]:
        each["judgement"] = judged.get(tuple(each[name] for name in key), "")
    page.write_result(given.out, found)
    print(f"{found['score']:.1%} of {found['sample']} mutants were noticed; survivors: {given.out}")


if __name__ == "__main__":
    main()
