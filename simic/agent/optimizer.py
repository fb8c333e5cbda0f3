"""Adam (Kingma, Ba 2015, arXiv 1412.6980) over named parameters: gradients as a list, state as plain tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from simic.agent.normalization import Reduce
from simic.errors import SimicError


class Adam:
    """torch's fused form, which passes over the weights once. All state exists from the start, so every checkpoint has
    the same names. ``decayed`` parameters have a weight decay of their own (Loshchilov, Hutter 2019, arXiv 1711.05101).
    """

    def __init__(
        self,
        module: nn.Module,
        learning_rate: float,
        eps: float,
        *,
        decayed: Sequence[nn.Parameter] = (),
        weight_decay: float = 0.0,
    ) -> None:
        self.named = dict(module.named_parameters())
        self.parameters = list(self.named.values())
        self.adam = torch.optim.AdamW(
            self._groups(decayed, weight_decay),
            lr=learning_rate,
            eps=eps,
            weight_decay=0.0,
            fused=True,
        )
        for parameter in self.parameters:
            self.adam.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def _groups(self, decayed: Sequence[nn.Parameter], weight_decay: float) -> list[dict]:
        chosen = {id(parameter) for parameter in decayed} if weight_decay else set()
        kept = [parameter for parameter in self.parameters if id(parameter) not in chosen]
        groups: list[dict] = [{"params": kept}] if kept else []
        if chosen:
            groups.append({"params": [p for p in self.parameters if id(p) in chosen], "weight_decay": weight_decay})
        return groups

    def gradients(self, loss: Tensor) -> tuple[Tensor, ...]:
        """One for each parameter; 0 for those that the loss does not reach."""
        return torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)

    def take(self, gradients: Sequence[Tensor], reduce: Reduce | None) -> None:
        """The gradients to step along, summed over processes in one exchange."""
        if reduce is not None:
            flat = reduce(torch.cat([gradient.flatten() for gradient in gradients]), "sum")
            parts = flat.split([parameter.numel() for parameter in self.parameters])
            gradients = [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def step(
        self, norm: Tensor, max_norm: float, learning_rate: float | Tensor | None = None, skip: Tensor | None = None
    ) -> None:
        """Clip the gradients, whose total norm is known, and move; where ``skip`` (a number, on the device) is 1
        nothing moves, which a fused optimizer finds out by itself.
        """
        nn.utils.clip_grads_with_norm_(self.parameters, max_norm, norm, foreach=True)
        if learning_rate is not None:
            for group in self.adam.param_groups:
                group["lr"] = learning_rate
        # The way torch.amp's GradScaler tells a fused optimizer that a gradient is not finite.
        self.adam.grad_scale, self.adam.found_inf = None, skip  # pyright: ignore[reportAttributeAccessIssue]
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
