"""Measure how hard the code is to read, and compare it with budgets.toml. `make check` runs this file.

python -m tests.house.reading            compare; exit code 1 where a package is beyond its budget
python -m tests.house.reading --print    also print the figures of every package, as budgets.toml has them
"""

import ast
import io
import sys
import tokenize
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUDGETS = Path(__file__).with_name("budgets.toml")

# Names that say how a thing came about, or point at it, instead of what it is.
VAGUE_NAMES = frozenset(
    """
    told said kept own each asked seen given used found taken made spent alone held some everyone fixed standing
    named what where other others reached played done whole both these those them theirs mine ours it its one ones
    this that here there so such same wanted known
    """.split()  # noqa: SIM905 - one name a word
)
TOKENS = (tokenize.NAME, tokenize.OP, tokenize.NUMBER)


@dataclass
class Reading:
    """Counts over some files."""

    tokens: int = 0  # names, operators, numbers: packing statements into one line saves none
    lines: int = 0
    code_lines: int = 0  # with at least one token
    comment_lines: int = 0
    packed: int = 0  # assignments of several values at once: a, b = x, y
    names: int = 0  # variables and arguments that are bound
    vague_names: int = 0
    docstrings: int = 0
    returns: int = 0  # docstrings that begin with "Return"

    def __add__(self, other: "Reading") -> "Reading":
        """Add the counts of two sets of files."""
        return Reading(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )

    def figures(self) -> dict[str, float]:
        """Compute the figures that budgets.toml limits."""
        return {
            "tokens": self.tokens,
            "tokens_per_code_line": _ratio(self.tokens, self.code_lines),
            "packed_per_1000_lines": 1000 * _ratio(self.packed, self.lines),
            "vague_names_pct": 100 * _ratio(self.vague_names, self.names),
            "comment_lines_pct": 100 * _ratio(self.comment_lines, self.lines),
            "returns_pct": 100 * _ratio(self.returns, self.docstrings),
        }


AT_LEAST = ("comment_lines_pct",)  # all other figures are limits from above


def _ratio(part: int, total: int) -> float:
    return part / max(1, total)


def read(text: str) -> Reading:
    """Count in the text of one file."""
    reading = Reading(lines=text.count("\n"))
    reading.comment_lines = sum(line.strip().startswith("#") for line in text.splitlines())
    lines_with_code = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in TOKENS:
            reading.tokens += 1
            lines_with_code.add(token.start[0])
    reading.code_lines = len(lines_with_code)
    for node in ast.walk(ast.parse(text)):
        _count_node(node, reading)
    return reading


def _count_node(node: ast.AST, reading: Reading) -> None:
    if (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    ):
        reading.packed += 1
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
        docstring := ast.get_docstring(node)
    ):
        reading.docstrings += 1
        reading.returns += docstring.startswith("Return")
    name = bound_name(node)
    if name is not None and name not in ("self", "cls", "_"):
        reading.names += 1
        reading.vague_names += name.strip("_") in VAGUE_NAMES


def bound_name(node: ast.AST) -> str | None:
    """Name the variable or argument that a node binds, if it binds one."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else None


def files_of(package: str, root: Path = ROOT) -> list[Path]:
    """List the Python files of a package: those of ``simic`` itself, of ``tests`` without reference."""
    if package == "simic":
        return sorted((root / package).glob("*.py"))
    files = sorted((root / package).rglob("*.py"))
    reference = root / "tests" / "reference"
    return [file for file in files if package != "tests" or reference not in file.parents]


def read_package(package: str, root: Path = ROOT) -> Reading:
    """Count in all files of a package."""
    total = Reading()
    for file in files_of(package, root):
        total += read(file.read_text(encoding="utf-8"))
    return total


def excesses(package: str, figures: dict[str, float], budget: dict[str, float]) -> list[str]:
    """Name each figure of a package that is beyond its budget."""
    lines = []
    for name, limit in budget.items():
        figure = round(figures[name], 2)
        exceeded = figure < limit if name in AT_LEAST else figure > limit
        if exceeded:
            bound = "at least" if name in AT_LEAST else "at most"
            lines.append(f"{package}: {name} is {figure:g}, must be {bound} {limit:g}")
    return lines


def budgets(text: str) -> dict[str, dict[str, float]]:
    """Parse budgets.toml into limits by package; those of [limits] hold where a package names none of its own."""
    tables = tomllib.loads(text)
    common = tables["limits"]
    packages = tables["packages"]
    return {
        package: {**(common if package != "tests" else {}), **limits}
        for package, limits in packages.items()
    }


def main() -> int:
    """Print what is beyond its budget; the exit code is 1 if anything is."""
    lines = []
    for package, budget in budgets(BUDGETS.read_text()).items():
        figures = read_package(package).figures()
        lines += excesses(package, figures, budget)
        if "--print" in sys.argv:
            print(
                f'"{package}" =',
                ", ".join(f"{name} {figure:.2f}" for name, figure in figures.items()),
            )
    print("\n".join(lines) if lines else "reading: every package is within its budget")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
