"""Serialise exported programs as bytes that depend on nothing but the program."""

import io

import torch
from torch.export import ExportedProgram


def as_bytes(program: ExportedProgram) -> bytes:
    """Serialise a program without the source of each operation, whose paths are absolute."""
    # Inner modules too: a branch has a graph of its own.
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    written = io.BytesIO()  # torch reports a full disk as a defect of its own
    torch.export.save(program, written)
    return written.getvalue()
