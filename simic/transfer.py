"""Move tensors: to a device without waiting for it, several as one, over processes that learn together, to arrays.

A plain copy to a GPU waits until everything queued there is done, so one small table in the middle of a step costs
what the queue hides. tests/envs/simulated_device.py counts such copies.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from simic.errors import SimicError

CPU = torch.device("cpu")

Reduce = Callable[[Tensor, Literal["sum", "max"]], Tensor]  # over all processes that learn together


def alone(tensor: Tensor, operation: Literal["sum", "max"]) -> Tensor:
    """Leave a tensor as it is: there is one process."""
    return tensor


def upload(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Copy values to a device, through pinned memory, from which copies are made in the background."""
    # Contiguous: torch takes no array with negative strides.
    tensor = (
        values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
    )
    if device == CPU:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


@cache
def constant(values: tuple, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make a small table, copied once to each device; not to be written to.

    Args:
        values: Numbers, or rows of numbers.
        dtype: Their type.
        device: Where the table is read.
    """
    return upload(torch.tensor(values, dtype=dtype, device=CPU), device)


def as_one(tensors: Sequence[Tensor], move: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Move several tensors in one go, as one flat tensor, and give them their shapes again."""
    # A copy of each would wait for the device as often.
    parts = move(torch.cat([tensor.flatten() for tensor in tensors])).split(
        [tensor.numel() for tensor in tensors]
    )
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def as_array(values: Any) -> np.ndarray:
    """Turn what a program holds into an array, tensors of any kind and place too; SimicError where it cannot be one."""
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu().resolve_conj()
            values = values.to_dense() if values.layout != torch.strided else values
            # A type that numpy does not know.
            return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
        return np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise SimicError(f"{type(values).__name__}: cannot be made an array: {reason}") from None
