"""Exported programs on disk: bytes that depend on nothing but the program."""

from pathlib import Path

import torch
from torch.export import ExportedProgram


def save(program: ExportedProgram, path: Path) -> None:
    """As torch.export writes it, without where in the source each operation comes from: those are absolute paths."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    torch.export.save(program, path)
