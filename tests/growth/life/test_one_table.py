"""The lifecycle's table is the only one: what follows from it is derived from it everywhere."""

import ast
from pathlib import Path

from simic.growth.life import lifecycle
from simic.growth.life.vocabulary import Stage

SIMIC = Path(lifecycle.__file__).parents[2]
DERIVED = {
    name: value
    for name, value in vars(lifecycle).items()
    if name.isupper() and isinstance(value, frozenset) and value
}


def stages_of(node: ast.AST) -> frozenset[Stage]:
    """The stages that a tuple, list or set names one by one; empty where it holds anything else."""
    elements = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else []
    attributes = [
        element
        for element in elements
        if isinstance(element, ast.Attribute) and ast.unparse(element.value) == "Stage"
    ]
    return (
        frozenset(Stage[element.attr] for element in attributes)
        if len(attributes) == len(elements)
        else frozenset()
    )


def test_no_other_file_lists_a_set_of_stages_that_follows_from_the_table() -> None:
    assert {"PRUNABLE_STAGES", "LIVE_STAGES", "ACTIVE_STAGES", "FAILURE_STAGES"} <= DERIVED.keys()
    assert stages_of(ast.parse("{Stage.PRUNED, Stage.EMBARGOED}", mode="eval").body) == {
        Stage.PRUNED,
        Stage.EMBARGOED,
    }
    for path in SIMIC.rglob("*.py"):
        if path.name == "lifecycle.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            listed = stages_of(node)
            copies = [
                name for name, derived in DERIVED.items() if len(listed) > 1 and listed == derived
            ]
            assert copies == [], f"{path.name}:{getattr(node, 'lineno', 0)} is {copies[0]} again"
