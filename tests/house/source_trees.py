"""The source of simic and flows as syntax trees, for rules that hold everywhere."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[2]
Node = TypeVar("Node", bound=ast.AST)

SOURCES: dict[str, str] = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for folder in ("simic", "flows")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
TREES: dict[str, ast.Module] = {name: ast.parse(text) for name, text in SOURCES.items()}
NODES: dict[str, list[ast.AST]] = {name: list(ast.walk(tree)) for name, tree in TREES.items()}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def every(kind: type[Node] | tuple[type[Node], ...], *folders: str) -> Iterator[tuple[str, Node]]:
    """Each node of a kind with its file, in all files or in those of the given folders."""
    for name, nodes in NODES.items():
        if not folders or name.startswith(folders):
            for node in nodes:
                if isinstance(node, kind):
                    yield name, node


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of a name or a chain of attributes, ``.c`` of an attribute of anything else; empty otherwise."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def at(name: str, node: ast.AST) -> str:
    """Where: ``file:line``."""
    return f"{name}:{getattr(node, 'lineno', 0)}"
