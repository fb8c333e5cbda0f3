"""Adam (Kingma, Ba 2015, arXiv 1412.6980) over named parameters, its state as plain tensors."""

import torch
from torch import Tensor, nn

from simic.errors import SimicError


class Adam(torch.optim.AdamW):
    """torch's fused form, which passes over the weights once, without weight decay. All state exists from the start, so
    every checkpoint has the same names.
    """

    grad_scale: Tensor | None
    found_inf: Tensor | None  # 1 on the device of the weights: the next step changes nothing

    def __init__(self, module: nn.Module, learning_rate: float, eps: float) -> None:
        self.named = dict(module.named_parameters())
        self.parameters = list(self.named.values())
        super().__init__(self.parameters, lr=learning_rate, eps=eps, weight_decay=0.0, fused=True)
        for parameter in self.parameters:
            self.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def largest_second_moment(self) -> Tensor:
        """max v̂ without bias correction over all parameters; a spike announces instability."""
        return torch.stack([self.state[p]["exp_avg_sq"].max() for p in self.parameters]).max()

    def tensors(self) -> dict[str, Tensor]:
        """``step`` (one for all) and both moments by the parameter's name; copies."""
        state: dict[str, Tensor] = {"step": self.state[self.parameters[0]]["step"].clone()}
        for name, parameter in self.named.items():
            for moment in ("exp_avg", "exp_avg_sq"):
                state[f"{moment}.{name}"] = self.state[parameter][moment].clone()
        return state

    @torch.no_grad()
    def load_tensors(self, state: dict[str, Tensor]) -> None:
        """Go on from what ``tensors`` returned."""
        for name, parameter in self.named.items():
            own = self.state[parameter]
            own["step"].copy_(state["step"])
            for moment in ("exp_avg", "exp_avg_sq"):
                own[moment].copy_(state[f"{moment}.{name}"])


def refuse_mismatch(what: str, expected: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    """SimicError naming the first tensor that is missing, unknown or of another shape."""
    for name in sorted(expected.keys() ^ given.keys()):
        raise SimicError(f"{what}: tensor {name!r} is {'missing' if name in expected else 'unknown'}")
    for name, tensor in expected.items():
        if tensor.shape != given[name].shape:
            have, want = tuple(given[name].shape), tuple(tensor.shape)
            raise SimicError(f"{what}: tensor {name!r} has shape {have}; this policy needs {want}")
