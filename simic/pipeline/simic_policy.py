"""Load a registered policy for MLflow: this file travels with the model, and needs torch and numpy alone.

    policy = mlflow.pyfunc.load_model("models:/simic-tables@champion")
    outputs = policy.predict({"features": ..., "categories": ..., "mask_op": ..., "h": ..., "c": ...})

Nothing is remembered between two calls, so that one loaded policy serves any number of episodes at once: the memory
``h`` and ``c`` goes in, zero where an episode begins, and comes out, to be given with the next step. The signature has
the shapes of all inputs; masks are true where a choice is allowed. Of a batch every row is a host of its own. A row
with a number that is not finite, or in which nothing is allowed, gets action -1 in every head, and its memory back.
"""

import json
from pathlib import Path

import numpy as np
import torch

OUTPUTS = ("actions", "op_logits", "value", "h", "c")


class ServedPolicy:
    """Serve the exported greedy policy of a folder with policy.pt2 and policy.json."""

    def __init__(self, folder: Path) -> None:
        described = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
        self._dtypes = {
            name: getattr(torch, spec["dtype"]) for name, spec in described["inputs"].items()
        }
        self._program = torch.export.load(folder / "policy.pt2").module()

    def predict(self, model_input: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compute the likeliest action of each row ``[batch, heads]``, logits and value, and the next memory."""
        inputs = [
            torch.tensor(np.asarray(model_input[name]), dtype=dtype)
            for name, dtype in self._dtypes.items()
        ]
        # The order of policy.json: features, categories, a mask for each head that has one, the memory.
        features, categories, *masks, h, c = inputs
        with torch.no_grad():
            outputs = self._program(features, categories, tuple(masks), h, c)
        return {name: tensor.numpy() for name, tensor in zip(OUTPUTS, outputs, strict=True)}


def _load_pyfunc(path: str) -> ServedPolicy:
    """Load the policy in the folder of a model; MLflow calls it by this name."""
    return ServedPolicy(Path(path) / "program")
