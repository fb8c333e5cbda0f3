"""A grown network as a product: one host of a population as a plain ``nn.Module``, in files anyone can open.

A directory holds ``structure.json`` (what it is made of), ``weights.safetensors``, ``history.json`` (how it grew),
``network.pt2`` (torch.export; runs without this package) and a model card. ``load_grown`` reads the first two.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from simic import durable, program, safe_read
from simic.data.raw_inputs import InputEncoder, RawInputs
from simic.errors import SimicError
from simic.growth.batch.groups import SlotState
from simic.growth.batch.population import Population
from simic.growth.life.vocabulary import Blend, Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.grafting import blend
from simic.growth.networks.hosts import HostSpec, build_host
from simic.growth.networks.tabular import TOGETHER
from simic.memory import machine_bytes
from simic.params import Host
from simic.torch_modes import as_before, usual_modes
from simic.transfer import as_array

FORMAT = 3
RESTORED = "bring the folder back, that of a run with dvc checkout reports/grown, or grow another"
MOST_LETTERS = 200
MOST_STRUCTURE_BYTES = 2**26
# How often the weights are held in memory at least.
COPIES = 3
STRUCTURE = "structure.json"
WEIGHTS = "weights.safetensors"
HISTORY = "history.json"
PROGRAM = "network.pt2"
CARD = "README.md"


class Record(BaseModel):
    """What is read back is checked: unknown or missing keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SeedRecord(Record):
    """One seed of the network."""

    slot: int
    blueprint: str
    stage: str
    operator: Literal["ADD", "MULTIPLY", "GATE"]
    alpha: float
    params: int


class Structure(Record):
    """``structure.json``."""

    format: Literal[3] = FORMAT
    host: Host
    input_shape: tuple[int, ...]
    classes: int
    seeds: tuple[SeedRecord, ...]
    params: int
    # Raw samples that it takes in place of standardised ones.
    inputs: RawInputs | None = None


class FittedStructure(Record):
    """``structure.json`` of a model that is no network of ours, and is its program alone."""

    format: Literal[3] = FORMAT
    model: str
    input_shape: tuple[int, ...]
    classes: int
    inputs: RawInputs | None = None


class GraftedSeed(nn.Module):
    """A seed and what joins it to the features ``[B, C, …]``; one that ``reads_input`` is added to them."""

    def __init__(
        self,
        seed: nn.Module,
        gate: nn.Module | None,
        operator: Blend,
        alpha: float,
        reads_input: bool = False,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.gate = gate
        self.operator = operator
        self.reads_input = reads_input
        self.register_buffer("alpha", torch.tensor([alpha]), persistent=False)

    def forward(self, x: Tensor, sample: Tensor) -> Tensor:
        # The blend is that of a population of one.
        gate = None if self.gate is None else self.gate(x)[None]
        grown = x + self.seed(sample) if self.reads_input else self.seed(x)
        return blend(
            self.operator,
            x[None],
            grown[None],
            x[None],
            self.get_buffer("alpha"),
            gate,
        )[0]


class Product(nn.Module):
    """A model that a directory can hold: logits ``[B, classes]`` of samples as ``structure`` says."""

    # Structure or FittedStructure.
    structure: Any
    # What contract.json says of the table that it learned from.
    contract: dict[str, Any] | None = None

    @property
    def classes_(self) -> np.ndarray:
        """List the names of the classes, in the order of the outputs."""
        return np.array(self._raw_inputs.classes)

    @property
    def _raw_inputs(self) -> RawInputs:
        if self.structure.inputs is None:
            raise SimicError("the network takes standardised samples: call it with a tensor")
        return self.structure.inputs

    def predict(self, x: Any) -> np.ndarray:
        """Predict the name of a class for each raw sample."""
        return self.classes_[self.predict_proba(x).argmax(axis=1)]

    def predict_proba(self, x: Any) -> np.ndarray:
        """Compute the probability of each class for raw samples, float64 ``[N, classes]``.

        Args:
            x: a DataFrame, whose columns are found by name, an array of rows, or images as those of training.

        Raises:
            SimicError: naming what is not as in training.
        """
        # Reading tables needs pandas, which training controllers does not.
        from simic.data.own import predict  # noqa: PLC0415

        inputs = self._raw_inputs
        raw, _ = self._read(x)
        with usual_modes(), torch.no_grad():
            # A copy: torch warns of memory that it may not write to, as that of some frames.
            batches = torch.as_tensor(np.array(raw), dtype=inputs.dtype).split(predict.ROWS_AT_ONCE)
            # Float64, as scikit-learn's own classifiers give.
            return torch.cat([self(batch).double().softmax(1) for batch in batches]).numpy()

    def check(self, x: Any) -> list[tuple[str, str, int]]:
        """Count what training did not have in rows as ``predict_proba`` takes them: column, kind, how many values."""
        return self._read(x)[1]

    def _read(self, x: Any) -> tuple[np.ndarray, list[tuple[str, str, int]]]:
        """Read raw samples as the network takes them, with what is counted of a table."""
        from simic.data.own import predict  # noqa: PLC0415

        inputs = self._raw_inputs.model_dump()
        try:
            if inputs["layout"] != "table":
                return predict.check_images(as_array(x), inputs), []
            frame = x if hasattr(x, "columns") else predict.array_frame(as_array(x))
            return predict.check(frame, inputs["columns"], self.contract)
        except ValueError as error:
            raise SimicError(str(error)) from None


class GrownNetwork(Product):
    """Host segments with a joint after each (identity where nothing grew), then the head: logits ``[B, classes]`` of
    images ``[B, C, H, W]``, ``[B, L, classes]`` of tokens ``[B, L]``; or of what ``structure.inputs`` says.
    """

    def __init__(self, structure: Structure, host: HostSpec) -> None:
        super().__init__()
        self.structure: Structure = structure
        self.inputs = None if structure.inputs is None else InputEncoder(structure.inputs)
        segments, self.head = host.modules()
        self.segments = nn.ModuleList(segments)
        self.joints = nn.ModuleList(_joint(host, k, structure.seeds) for k in range(host.slots))
        self.tied = {f"head.{name}": f"segments.0.{source}" for name, source in host.tied.items()}

    @classmethod
    def fresh(cls, structure: Structure, host: HostSpec) -> Self:
        """Build a network without its weights; torch's global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            return cls(structure, host).eval()

    def weights(self) -> dict[str, Tensor]:
        """List every tensor once: of tied ones, by the first segment's name."""
        return {name: tensor for name, tensor in self.state_dict().items() if name not in self.tied}

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x if self.inputs is None else self.inputs(x))

    def body(self, x: Tensor) -> Tensor:
        """Compute logits of standardised samples."""
        # Seeds of some families read the sample, not the features.
        sample = x
        for segment, joint in zip(self.segments, self.joints, strict=True):
            x = segment(x)
            x = joint(x, sample) if isinstance(joint, GraftedSeed) else x
        return self.head(x)


def _joint(host: HostSpec, slot: int, seeds: Sequence[SeedRecord]) -> nn.Module:
    record = next((seed for seed in seeds if seed.slot == slot), None)
    if record is None:
        return nn.Identity()
    # A blueprint of the user's own must be registered before its network is read.
    registered = blueprints_of(host.family)
    by_name = {item.name: item for item in (*registered, TOGETHER)}
    if record.blueprint not in by_name:
        names = ", ".join(item.name for item in registered)
        raise SimicError(
            f"blueprint {record.blueprint!r}: not registered; known here are {names}; "
            "of one's own, import the module that defines it first"
        )
    # Built as a population builds it, so that the weights fit.
    operator = Blend[record.operator]
    gate = host.gate(host.slot_shapes[slot]) if operator is Blend.GATE else None
    seed = by_name[record.blueprint].build(host.seed_shapes[slot])
    return GraftedSeed(seed, gate, operator, record.alpha, host.reads_input)


def grown_network(
    population: Population,
    slots: Slots,
    row: int,
    committed: bool = False,
    inputs: RawInputs | None = None,
) -> GrownNetwork:
    """Take one host out of a population, with the seeds that act on its output.

    Args:
        population: the hosts.
        slots: state of their slots.
        row: which host.
        committed: keep the FOSSILIZED seeds alone.
        inputs: raw samples that the network is to take in place of standardised ones.

    Returns:
        A plain module on the CPU.
    """
    # Which seeds act on the output, and how.
    state = SlotState.read(slots)
    acting = state.acting[row] & ((state.stage[row] == Stage.FOSSILIZED) | (not committed))
    weights = population.seed_params(slots)[row].tolist()
    seeds = tuple(
        SeedRecord(
            slot=k,
            blueprint=population.blueprints[state.blueprint[row, k]].name,
            stage=Stage(state.stage[row, k]).name,
            operator=Blend(state.operator[row, k]).name,  # type: ignore[arg-type]  # pydantic checks the name
            alpha=float(slots.alpha[row, k]),
            params=weights[k],
        )
        for k in range(population.host.slots)
        if acting[k]
    )
    # What the network is made of, for whoever reads it back.
    structure = Structure(
        host=population.host.config,
        input_shape=population.host.input_shape,
        classes=population.host.classes,
        seeds=seeds,
        params=population.host.params + sum(seed.params for seed in seeds),
        inputs=inputs,
    )
    network = GrownNetwork.fresh(structure, population.host)
    _load(network, population.named_parameters(slots, row), f"host {row}")
    return network


def write_network(
    network: GrownNetwork,
    path: Path,
    history: Sequence[JsonValue],
    card: str,
    files: Mapping[str, str | bytes] | None = None,
) -> Path:
    """Write a network as a directory, whole or not at all.

    Args:
        network: to write.
        path: of the directory, new or empty.
        history: how it grew, for history.json.
        card: the model card, Markdown.
        files: other files, by name.

    Raises:
        SimicError: where the directory has files, or torch cannot export the network.
    """
    durable.refuse_full(path)
    with durable.new_directory(path) as folder:
        for name, content in (contents(network, card, history) | dict(files or {})).items():
            file = folder / name
            file.parent.mkdir(exist_ok=True)
            durable.write_synced(file, content.encode() if isinstance(content, str) else content)
    return path


def contents(
    model: Product,
    card: str,
    history: Sequence[JsonValue] | None = None,
) -> dict[str, str | bytes]:
    """Write the files of a model: its program, of a network its weights and, if there is one, its history, and the
    structure with their hashes; SimicError where torch cannot export it.
    """
    files = dict[str, bytes]()
    if isinstance(model, GrownNetwork):
        files[WEIGHTS] = save(
            {name: tensor.contiguous() for name, tensor in model.weights().items()}
        )
    if history is not None:
        files[HISTORY] = (json.dumps(list(history), indent=2, allow_nan=False) + "\n").encode()
    files[PROGRAM] = _program(model)
    hashes = {"sha256": {name: durable.sha256_of(content) for name, content in files.items()}}
    structure = durable.with_checksum(model.structure.model_dump(mode="json") | hashes)
    return {**files, STRUCTURE: structure, CARD: card}


def _program(network: Product) -> bytes:
    """Export the network as one graph for any batch size; it needs torch alone to run."""
    example = _example(network.structure)
    batch = torch.export.Dim("batch", min=1)
    # Torch raises errors of many kinds where a user's blueprint does what cannot be traced.
    try:
        return program.as_bytes(
            torch.export.export(network, (example,), dynamic_shapes=({0: batch},))
        )
    except Exception as error:
        seeds = network.structure.seeds if isinstance(network, GrownNetwork) else ()
        names = ", ".join(sorted({seed.blueprint for seed in seeds})) or "no seeds"
        reason = " ".join(str(error).split())[:200]
        raise SimicError(
            f"{PROGRAM}: torch.export cannot write a network with {names}: {reason}"
        ) from error


def _example(structure: Structure | FittedStructure) -> Tensor:
    """Make two samples that the network takes: raw ones or standardised ones."""
    inputs = structure.inputs
    if inputs is not None:
        return torch.zeros(2, *inputs.shape, dtype=inputs.dtype)
    shape = structure.input_shape
    return torch.zeros(2, *shape, dtype=torch.int64 if len(shape) == 1 else torch.float32)


@as_before()
def load_grown(path: Path | str) -> GrownNetwork:
    """Read the network that ``write_network`` wrote, in evaluation mode; SimicError on anything wrong."""
    path = durable.user_path(path)
    structure, weights = _files(path)
    try:
        host = build_host(structure.host, structure.input_shape, structure.classes)
        # Shapes first, without memory: a description may ask for any number of gigabytes.
        with torch.device("meta"):
            outline = GrownNetwork.fresh(structure, host)
            outline(_example(structure))
    # Sizes beyond all numbers, columns that do not fit the features.
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0][:MOST_LETTERS]
        raise SimicError(
            f"{path / STRUCTURE}: no network can be built: {reason}; {RESTORED}"
        ) from None
    _expected(outline, weights, str(path / WEIGHTS))
    network = GrownNetwork.fresh(structure, host)
    _load(network, weights, str(path / WEIGHTS))
    network.contract = _contract(path) if structure.inputs is not None else None
    return network


def _contract(path: Path) -> dict[str, Any] | None:
    from simic.data.own import predict  # noqa: PLC0415 - needs pandas

    try:
        return predict.read_contract(path)
    except ValueError as error:
        raise SimicError(f"{error}; {RESTORED}") from None


def _files(path: Path) -> tuple[Structure, dict[str, Tensor]]:
    """Read structure and weights of a network; SimicError where they do not match their checksums."""
    # The structure has a checksum of its own, and those of the other files.
    file = path / STRUCTURE
    try:
        structure = durable.checked(safe_read.read_file(file, MOST_STRUCTURE_BYTES, RESTORED))
        if "model" in structure:
            raise SimicError(
                f"{file}: {structure['model']}, no network: python predict.py DATA in its folder predicts with it"
            )
        weights = safe_read.read_file(path / WEIGHTS, machine_bytes() // COPIES, RESTORED)
        hashes = dict(structure.pop("sha256", {}))
        if durable.sha256_of(weights) != hashes.get(WEIGHTS):
            raise SimicError(
                f"{path / WEIGHTS}: damaged: its sha256 is not the one in {STRUCTURE}; {RESTORED}"
            )
        return Structure.model_validate_json(json.dumps(structure)), load(weights)
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise SimicError(f"{file}: {key}: {error.errors()[0]['msg']}; {RESTORED}") from None
    except (ValueError, RecursionError, SafetensorError) as error:
        raise SimicError(f"{file}: damaged: {' '.join(str(error).split())}; {RESTORED}") from None


def _load(network: GrownNetwork, weights: dict[str, Tensor], source: str) -> None:
    expected = _expected(network, weights, source)
    # A tied tensor is in the file once, under the first segment's name.
    tensors = {name: weights[name] for name in expected}
    network.load_state_dict(
        tensors | {name: tensors[source] for name, source in network.tied.items()}
    )


def _expected(
    network: GrownNetwork,
    weights: dict[str, Tensor],
    source: str,
) -> dict[str, torch.Size]:
    """List the shapes of a network's tensors; SimicError where these are others."""
    # Tensors of slots that the network does not have are left out: a population has some of every live seed.
    expected = {name: tensor.shape for name, tensor in network.weights().items()}
    for name in expected.keys() - weights.keys():
        raise SimicError(f"{source}: tensor {name} is missing")
    for name, shape in expected.items():
        if weights[name].shape != shape:
            raise SimicError(
                f"{source}: tensor {name} has shape {tuple(weights[name].shape)}, must be {tuple(shape)}"
            )
        if not weights[name].isfinite().all():
            raise SimicError(f"{source}: tensor {name} holds numbers that are not finite")
    return expected
