"""The hash chain of a run: each link is a sha256 over the counters, which hold the link before, and all tensors."""

import hashlib
import json
from collections.abc import Mapping

from torch import Tensor


def link(scalars: Mapping[str, object], before: str, tensors: Mapping[str, Tensor]) -> str:
    """The link after an iteration, from its checkpoint's counters and tensors and the link before.

    The counters come first, as JSON with sorted keys; then by name every tensor's name, type, shape and bytes.
    """
    content = hashlib.sha256(json.dumps({**scalars, "chain": before}, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.numpy().tobytes())
    return content.hexdigest()
