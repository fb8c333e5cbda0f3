"""The greedy policy as a program of its own: normaliser, memory and hierarchy in one file that torch or ONNX loads."""

import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from simic import durable, program
from simic.agent.core import RecurrentState
from simic.agent.distributions import faults
from simic.agent.normalization import ObservationNormalizer
from simic.agent.policy import ActorCritic
from simic.agent.spaces import Layout
from simic.agent.spec import ActionSpec, Head, Observation, rescaled
from simic.errors import SimicError

PROGRAM = "policy.pt2"
ONNX_PROGRAM = "policy.onnx"
CALLS = {
    PROGRAM: "module()(features, categories, (masks, ...), h, c)",
    ONNX_PROGRAM: "session.run(None, {name: input})",
}
DESCRIPTION = "policy.json"  # also the key of the same text in an ONNX file's metadata
OUTPUTS = ("actions", "op_logits", "value", "next_h", "next_c")
LIBRARIES = ("onnx", "onnxscript")  # which torch.onnx.export imports
NO_ACTION = -1  # the index where a row cannot be decided


class GreedyPolicy(nn.Module):
    """Take raw observation and memory; return the likeliest action, as the environment numbers it, op logits, value and
    new memory; no noise.

    A program cannot refuse. Where a number of a row is not finite, or a head has no legal choice, every head answers
    one less than its first choice, or NaN, which is no action, and the memory stays as it was.
    """

    mean: Tensor
    scale: Tensor
    limit: Tensor
    nothing: Tensor
    action_middle: Tensor
    action_half: Tensor
    action_low: Tensor
    action_high: Tensor

    def __init__(
        self, policy: ActorCritic, normalizer: ObservationNormalizer | None, masks: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.policy = policy
        self.masks = masks
        spec = policy.action_spec
        like = policy.like
        # Indices of choices that there are not, and no numbers.
        nothing = [NO_ACTION] * len(spec.discrete_heads)
        nothing += [torch.nan] * (spec.width - len(nothing))
        self.register_buffer("nothing", torch.tensor(nothing, dtype=spec.dtype, device=like.device))
        for name, scale in spec.scales(like.device)._asdict().items():
            self.register_buffer(f"action_{name}", scale.clone())
        # Without a normaliser the same formula leaves features as they are.
        for name, neutral in {"mean": 0.0, "scale": 1.0, "limit": torch.inf}.items():
            neutral_values = like.new_full((policy.observation_spec.features,), neutral)
            self.register_buffer(name, getattr(normalizer, name, neutral_values).clone())

    def forward(
        self,
        features: Tensor,
        categories: Tensor,
        masks: tuple[Tensor, ...],
        h: Tensor,
        c: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        # What act does: an exported program has no branch on values.
        count = self.policy.observation_spec.pixels
        pixels, numbers = features.tensor_split([count], dim=-1)
        normalized = ((numbers - self.mean) / self.scale).clamp(-self.limit, self.limit)
        named_masks = dict(zip(self.masks, masks, strict=True))
        observation = Observation(
            normalized.to(h.dtype), categories, named_masks, pixels=pixels if count else None
        )
        readings, state = self.policy.step(observation, RecurrentState(h, c))
        decisions = self.policy.choose(readings.actor.z, named_masks)
        value = self.policy.state_value(readings.value)
        # Rows that cannot be decided; an infinite feature would be clipped, and taken for a large one.
        is_faulty = ~torch.cat((features, h, c), dim=-1).isfinite().all(dim=-1)
        is_faulty = is_faulty | faults(decisions).any(dim=0).any(dim=-1)
        # As the environment takes them: who runs the program knows nothing of indices from 0.
        actions = torch.cat([head.columns for head in decisions], dim=-1)
        actions = torch.where(is_faulty[:, None], self.nothing, actions)
        scales = (self.action_middle, self.action_half, self.action_low, self.action_high)
        actions = rescaled(actions, *scales)
        after = [
            torch.where(is_faulty[:, None], old, new)
            for old, new in zip((h, c), state, strict=True)
        ]
        return actions, decisions[0].outputs, value, after[0], after[1]


def masked_heads(spec: ActionSpec) -> tuple[str, ...]:
    """List the first head and those whose mask depends on an earlier choice."""
    return tuple(
        head.name
        for k, head in enumerate(spec.discrete_heads)
        if k == 0 or head.mask_given != "nothing"
    )


def export_policy(
    policy: ActorCritic,
    normalizer: ObservationNormalizer | None,
    directory: Path,
    masks: tuple[str, ...] | None = None,
    layout: Layout | None = None,
) -> None:
    """Write ``policy.pt2`` and its description into a folder; the arguments are those of ``program_files``."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in program_files(policy, normalizer, masks, layout).items():
        durable.write_synced(directory / name, content)


def program_files(
    policy: ActorCritic,
    normalizer: ObservationNormalizer | None,
    masks: tuple[str, ...] | None = None,
    layout: Layout | None = None,
    file: str = PROGRAM,
) -> dict[str, bytes]:
    """Make the program and its description ``policy.json``. The batch may be of any size.

    Args:
        policy: What decides.
        normalizer: Its scales, which become part of the program.
        masks: The heads that take a mask (default: ``masked_heads``); pass all True for one that is free.
        layout: Says which columns a part of the observation fills; None where that is described elsewhere.
        file: ``PROGRAM`` or ``ONNX_PROGRAM``.

    Returns:
        Contents by file name.

    Raises:
        SimicError: A library that ONNX needs is missing.
    """
    if file == ONNX_PROGRAM:
        _require_onnx()
    # Traced once with an example; the batch stays a symbol, all other sizes become constants of the program.
    names = masked_heads(policy.action_spec) if masks is None else masks
    module = GreedyPolicy(policy, normalizer, names).eval()
    batch = torch.export.Dim("batch", min=1, max=1_000_000)
    example = _example(policy, names)
    with torch.no_grad():
        exported = torch.export.export(
            module, example, dynamic_shapes=_rows(names, batch), strict=False
        )
        outputs = module(*example)
    # The program and the page that says what its inputs are called.
    description = _description(policy, names, example, outputs, file)
    if layout is not None:
        description["observation"] = layout.columns()
    text = json.dumps(description, indent=2) + "\n"
    is_onnx = file == ONNX_PROGRAM
    content = _as_onnx(exported, names, text) if is_onnx else program.as_bytes(exported)
    return {file: content, DESCRIPTION: text.encode()}


def _rows(names: tuple[str, ...], batch: object) -> tuple:
    """Say of each input that its first dimension is the batch."""
    rows = {0: batch}
    return rows, rows, tuple(rows for _ in names), rows, rows


def _require_onnx() -> None:
    for library in LIBRARIES:
        if importlib.util.find_spec(library) is None:
            raise SimicError(f"{library} is not installed; pip install 'simic-grow[onnx]'")


def _as_onnx(exported: ExportedProgram, names: tuple[str, ...], description: str) -> bytes:
    """Translate a program; the description travels inside."""
    with _quiet():
        translated = torch.onnx.export(
            exported,
            dynamo=True,
            input_names=["features", "categories", *map("mask_{}".format, names), "h", "c"],
            output_names=OUTPUTS,
            dynamic_shapes=_rows(names, "batch"),
            verbose=False,
        )
    assert translated is not None
    model = translated.model_proto
    # What torch notes of each node takes as much room as small weights, and has the paths of this machine.
    for noted in (*model.graph.node, *model.graph.value_info):
        del noted.metadata_props[:]
    model.metadata_props.add(key=DESCRIPTION, value=description)
    return model.SerializeToString(deterministic=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what the translator says of itself: of libraries that no policy needs, and of its own old calls."""
    # A logger below another takes its level, unless it has one.
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _example(
    policy: ActorCritic, names: tuple[str, ...]
) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor, Tensor]:
    """Make inputs of three rows: torch.export takes sizes 0 and 1 for constants."""
    spec = policy.action_spec
    columns = policy.observation_spec
    like = policy.like
    shapes = {head.name: spec.mask_shape(k) for k, head in enumerate(spec.heads)}
    masks = tuple(
        torch.ones(3, *shapes[name], dtype=torch.bool, device=like.device) for name in names
    )
    # -1 is none, the one category that every environment has.
    categories = torch.full((3, columns.categories), -1, device=like.device)
    state = policy.initial_state(3)
    # Pixels go in as numbers, before the others.
    width = columns.pixels + columns.features
    features = like.new_zeros(3, width, dtype=getattr(torch, columns.dtype))
    return features, categories, masks, state.h, state.c


def _own(head: Head) -> dict[str, Any]:
    return {"bounds": head.bounds} if head.continuous else {"first": head.first}


def _description(
    policy: ActorCritic, names: tuple[str, ...], example: tuple, outputs: tuple, file: str
) -> dict[str, Any]:
    """Describe names, shapes (batch first) and types of inputs and outputs, and what the heads are called."""
    features, categories, masks, h, c = example
    inputs = {"features": features, "categories": categories}
    # In the order of the call, so that another language can pass them by position.
    inputs |= {f"mask_{name}": mask for name, mask in zip(names, masks, strict=True)} | {
        "h": h,
        "c": c,
    }
    return {
        "program": file,
        "call": CALLS[file],
        "inputs": _tensors(inputs),
        "outputs": _tensors(dict(zip(OUTPUTS, outputs, strict=True))),
        "initial_state": "h and c are zero at the start of an episode; next_h and next_c go in with the next step",
        "no_action": "first - 1, of numbers NaN, where an input is not finite or nothing is legal; h and c stay",
        "actions": policy.action_spec.column_names,
        "heads": [
            {"name": head.name, "size": head.size} | _own(head) for head in policy.action_spec.heads
        ],
        "relevance": [list(row) for row in policy.action_spec.relevance],
        "observation_version": policy.observation_spec.version,
    }


def _tensors(named: dict[str, Tensor]) -> dict[str, Any]:
    return {
        name: {"shape": ["batch", *tensor.shape[1:]], "dtype": str(tensor.dtype)[6:]}
        for name, tensor in named.items()
    }
