"""Copy from the host's memory to a device without waiting for it.

A plain copy to a GPU waits until everything queued there is done, so one small table in the middle of a step costs
what the queue hides. tests/envs/simulated_device.py counts such copies.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor

CPU = torch.device("cpu")


def upload(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Copy values to a device, through pinned memory, from which copies are made in the background."""
    tensor = (
        values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
    )
    if device == CPU:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


@cache
def constant(values: tuple, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make a small table, copied once to each device; not to be written to."""
    return upload(torch.tensor(values, dtype=dtype, device=CPU), device)
