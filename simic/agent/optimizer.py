"""Adam (Kingma, Ba 2015, arXiv 1412.6980) over named parameters: gradients as a list, state as plain tensors."""

import torch
from torch import Tensor, nn

from simic.agent.normalization import Reduce
from simic.errors import SimicError


class Adam:
    """Fused on a GPU, foreach on a CPU. All state exists from the start, so every checkpoint has the same names."""

    def __init__(self, module: nn.Module, learning_rate: float, eps: float) -> None:
        self.named = dict(module.named_parameters())
        self.parameters = list(self.named.values())
        cuda = self.parameters[0].is_cuda
        self.adam = torch.optim.Adam(self.parameters, lr=learning_rate, eps=eps, fused=cuda, foreach=not cuda)
        for parameter in self.parameters:
            self.adam.state[parameter] = {
                "step": torch.zeros((), device=parameter.device if cuda else "cpu"),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def backward(self, loss: Tensor, reduce: Reduce | None) -> None:
        """Gradients of the loss, summed over processes; a parameter that the loss does not reach gets 0."""
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        if reduce is not None:
            flat = reduce(torch.cat([gradient.flatten() for gradient in gradients]), "sum")
            parts = flat.split([parameter.numel() for parameter in self.parameters])
            gradients = tuple(part.view_as(p) for part, p in zip(parts, self.parameters, strict=True))
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def step(self, norm: Tensor, max_norm: float) -> None:
        """Clip the gradients, whose total norm is known, and move."""
        nn.utils.clip_grads_with_norm_(self.parameters, max_norm, norm, foreach=True)
        self.adam.step()

    def largest_second_moment(self) -> Tensor:
        """max v̂ without bias correction over all parameters; a spike announces instability."""
        return torch.stack([self.adam.state[p]["exp_avg_sq"].max() for p in self.parameters]).max()

    def state_dict(self) -> dict[str, Tensor]:
        """``step`` (one for all) and both moments by the parameter's name; copies."""
        state: dict[str, Tensor] = {"step": self.adam.state[self.parameters[0]]["step"].clone()}
        for name, parameter in self.named.items():
            for moment in ("exp_avg", "exp_avg_sq"):
                state[f"{moment}.{name}"] = self.adam.state[parameter][moment].clone()
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, parameter in self.named.items():
            own = self.adam.state[parameter]
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
