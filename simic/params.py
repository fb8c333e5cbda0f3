"""params.yaml as one frozen tree: a misspelt key or a value out of range stops the run in a millisecond.

Here are types, ranges and reasons. The values are those of params.yaml (a test compares them), so that a params file
need hold only what differs, and that the library needs no file.
The file is parsed as DVC parses it (ruamel.yaml, YAML 1.2), so that what simic uses is what dvc.lock records.
"""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from simic import registry
from simic.errors import SimicError
from simic.registry import Known
from simic.safe_read import read_file
from simic.validation_messages import refusal, short

EXTENSIONS_FOLDER = "extensions"

# Ranges. Beyond the ends of these floats float32 loses the other numbers, and no run is known that needs them.
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0, le=1e6)]
Positive = Annotated[float, Field(ge=1e-12, le=1e6)]
Penalty = Annotated[float, Field(ge=-1e6, le=0.0)]
LearningRate = Annotated[float, Field(ge=1e-12, le=10.0)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Units = Annotated[int, Field(ge=1, le=8192)]  # of a layer, or positions of a sequence
Workers = Annotated[
    int, Field(ge=1, le=256)
]  # threads or processes: the libraries beneath crash on far more
Steps = Annotated[int, Field(ge=0, le=1_000_000)]


def _not_a_flag(value: object) -> object:
    if isinstance(value, bool):  # which equals 1
        raise ValueError("must be 1, 3 or 5")
    return value


Odd = Annotated[Literal[1, 3, 5], BeforeValidator(_not_a_flag)]  # pixels of a kernel


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError("values must be unique")
    return values


Once = AfterValidator(_unique)


class Tree(BaseModel):
    """A frozen section; unknown keys, NaN and values of another type are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Split(Tree):
    """Fractions of the samples; stratified by label."""

    train: Fraction = 0.6
    val: Fraction = 0.2
    test: Fraction = 0.2

    @model_validator(mode="after")
    def _sums_to_one(self) -> Self:
        if (
            min(self.train, self.val, self.test) <= 0
            or abs(self.train + self.val + self.test - 1) > 1e-9
        ):
            raise ValueError("train, val and test must each be above 0 and sum to 1")
        return self


class Instances(Tree):
    """Numbers of tasks that are drawn from a suite; their kinds take turns."""

    train: Count = 1100
    val: Count = 96  # they choose the best checkpoint
    held_out: Count = 216  # of kinds that training knows
    held_out_kinds: Steps = 216  # of kinds that it does not
    outside: Steps = 96  # of what was not made for the suite


class Suite(Tree):
    """The distribution of tasks of task suite, and how many are drawn from it."""

    name: Annotated[str, Known(registry.SUITE)] = "tables"
    # null: all but those held out
    kinds: Annotated[tuple[str, ...], Field(strict=False, min_length=1), Once] | None = None
    # Null: as the suite has it
    held_out_kinds: Annotated[tuple[str, ...], Field(strict=False), Once] | None = None
    instances: Instances = Instances()


class GymWrapper(Tree):
    """A wrapper of an environment: ``module:Name``, and its keyword arguments."""

    name: str
    options: dict[str, Any] = {}


class GymParams(Tree):
    """The Gymnasium environment of task gym."""

    id: str | None = None  # a registered id; of module:Name-v0 the module is imported first
    options: dict[str, Any] = {}  # keyword arguments of gymnasium.make
    wrappers: Annotated[tuple[GymWrapper, ...], Field(strict=False)] = ()  # the innermost first
    # one: all in this process; processes: Gymnasium's process for each; tensors: the id's own vector environment
    vector: Literal["one", "processes", "tensors"] = "one"


class Prepare(Tree):
    """The data, how much of them is used, and their split."""

    task: Annotated[str, Known(registry.TASK)] = "suite"
    source: str | None = None  # npz, text: a file in the data directory
    # Null: all; else so many, stratified, chosen by hash (text: windows of one piece)
    samples: Count | None = None
    suite: Suite = Suite()
    context: Units = 64  # text: bytes that one window predicts the next bytes of
    split: Split = Split()
    gym: GymParams = GymParams()

    @property
    def is_gym(self) -> bool:
        """Tell whether the agent controls a Gymnasium environment, and nothing is grown."""
        return self.task == registry.GYM

    @property
    def dataset(self) -> str:
        """Return what is learned from: the suite, the Gymnasium environment, else the task."""
        return self.suite.name if self.task == "suite" else self.gym.id or self.task

    @model_validator(mode="after")
    def _environment_where_needed(self) -> Self:
        if self.is_gym != (self.gym.id is not None):
            raise ValueError(
                "gym.id is the environment of task gym: required there, null otherwise"
            )
        return self

    @model_validator(mode="after")
    def _source_where_needed(self) -> Self:
        own = self.task not in registry.shipped(registry.TASK)  # a user's task may take one or not
        if not own and (self.task in ("npz", "text")) != (self.source is not None):
            raise ValueError(
                "source is the .npz file of task npz or the file of task text: required there, null otherwise"
            )
        return self


class Host(Tree):
    """The network to be grown: a preset of a family, single properties overridden where not null."""

    family: Annotated[str, Known(registry.FAMILY)] = "tables"
    preset: Annotated[str, Known(registry.PRESET)] = "baseline"
    widths: (
        Annotated[tuple[Units, ...], Field(strict=False, min_length=1, max_length=12)] | None
    ) = None
    kernel_size: Odd | None = None

    @model_validator(mode="after")
    def _as_many_widths_as_the_family_has(self) -> Self:
        if self.family == "tables" and self.widths is not None and len(self.widths) != 2:
            raise ValueError(f"widths {list(self.widths)}: family tables has two, or null")
        return self


class HostOptimizer(Tree):
    """The optimizer of hosts and seeds."""

    name: Literal["sgd", "adamw"] = "adamw"
    learning_rate: LearningRate = 0.005
    momentum: Fraction = 0.9
    weight_decay: NonNegative = 0.02
    seed_weight_decay: NonNegative = 0.02
    max_grad_norm: Positive = 1.0  # host and each seed clipped apart


class Lifecycle(Tree):
    """Timing and gates of seeds; all in host epochs (= environment steps)."""

    gates: Literal["permissive", "strict"] = "permissive"
    training_dwell: Steps = 0  # before BLENDING (gate G2)
    blending_dwell: Steps = 0  # before HOLDING (gate G3, strict)
    min_prune_age: Steps = 0
    embargo_steps: Steps = 0
    reset_steps: Steps = 0
    min_improvement_pct: NonNegative = 0.5  # G2 strict
    min_gradient_ratio: NonNegative = 0.1  # G2 strict
    min_contribution_pct: NonNegative = 1.0  # G5 strict
    auto_advance: bool = True  # gates G1 to G3 fire by themselves; docs/history/experiments.md
    sequential_development: bool = False
    max_seeds: Count | None = 1  # null: one per slot
    param_budget: Positive = 4.0  # seeds may hold this many times the host's parameters


class ShapedReward(Tree):
    """Weights of the modes shaped and escrow."""

    contribution_weight: NonNegative = 0.1
    alpha_shock_weight: NonNegative = 0.1958
    rent_weight: NonNegative = 0.5
    fossilize_weight: NonNegative = 3.0
    terminal_weight: NonNegative = 0.05


class SparseReward(Tree):
    """Weights of the mode sparse."""

    scale: Positive = 1.0
    param_penalty: NonNegative = 0.1


class EscrowReward(Tree):
    """Limits of the mode escrow, which has the weights of shaped too."""

    clip: Positive = 2.0  # most that escrowed credit rises in a step
    # Validations whose least accuracy counts as stable
    window: Annotated[int, Field(ge=1, le=10)] = 3


class LossReward(Tree):
    """Weights of the mode loss."""

    weight: NonNegative = 0.2  # of an improvement by one sigma
    sigma_chances: Positive = 0.02  # sigma, as a share of the loss of a uniform guess
    # Loss that earns the whole terminal reward
    target_chances: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.13
    terminal_weight: NonNegative = 1.0
    rent_weight: NonNegative = 0.05


class ScoreReward(Tree):
    """Weight of the mode score."""

    weight: NonNegative = 0.1  # of a point


class Reward(Tree):
    """Weights of the reward terms (docs/metrics.md says which mode has which); accuracies in points 0–100."""

    mode: Annotated[str, Known(registry.REWARD_MODE)] = "score"
    pbrs_weight: NonNegative = 0.0
    intervention_cost: NonNegative = 0.0
    death_penalty: Penalty = -10.0
    # Or twice its standard error, whichever is larger
    contribution_threshold_pct: NonNegative = 1.0
    rent_cap: NonNegative = 1.5  # of shaped, escrow and loss, like the next
    rent_floor_params: Count = 200
    shaped: ShapedReward = ShapedReward()
    sparse: SparseReward = SparseReward()
    escrow: EscrowReward = EscrowReward()
    loss: LossReward = LossReward()
    score: ScoreReward = ScoreReward()


class Governor(Tree):
    """Watchdog over each host; thresholds relative to the task's chance loss."""

    sensitivity_sigmas: Positive = 6.0
    loss_multiplier: Positive = 3.0
    # Divergence only above this many times the loss of a uniform guess
    absolute_loss_chances: Positive = 5.0
    window: Count = 20
    min_history: Count = 5
    consecutive_panics: Count = 3
    rollback_budget: Count = 100  # more than this in a run ends it with a finding


CoreKind = Literal["lstm", "gru", "transformer", "none"]


class Policy(Tree):
    """Sizes of the recurrent actor-critic."""

    encoder_units: Units = 64
    core: CoreKind = "gru"
    core_units: Units = 64
    window: Units = 64  # steps of an episode that a transformer sees, the present one included
    head_units: Units = 64
    # own: with an encoder and a core of its own; detached: it reads the actor's and the observation, and pulls at none
    critic: Literal["own", "detached"] = "detached"
    embedding_units: Units = 4
    # How numbers stay within their bounds. clipped: draws are cut off there; squashed: a tanh brings them inside
    box: Literal["clipped", "squashed"] = "clipped"


class PPOParams(Tree):
    """Proximal policy optimisation; names follow the paper (arXiv 1707.06347)."""

    learning_rate: LearningRate = 0.0015
    # Linear: falls to a fifth in the last update
    learning_rate_schedule: Literal["constant", "linear"] = "linear"
    adam_eps: Positive = 1e-5
    clip_range: Positive = 0.2
    epochs: Count = 6
    minibatches: Count = 4
    target_kl: Positive | None = None  # an epoch stops at 1.5 × this
    entropy_coef: NonNegative = 0.03
    entropy_coef_final: NonNegative = 0.003
    entropy_scale: dict[str, NonNegative] = {}  # times entropy_coef, by head; 1 where not named
    value_coef: NonNegative = 0.5
    max_grad_norm: Positive = 0.5
    ratio: Literal["joint", "per_head"] = "joint"
    gamma: Fraction = 1.0
    gae_lambda: Fraction = 0.95
    normalize_observations: bool = True
    normalize_rewards: bool = False


Choices = Annotated[tuple[str | int | float, ...], Field(strict=False), Once]


class Train(Tree):
    """One training run of the controller."""

    host: Host = Host()
    iterations: Count = 80
    horizon: Count | None = 80  # iterations over which ppo.entropy_coef falls; null: all of them
    envs: Count = 1024
    # Epochs of each host and decisions about it; a range [low, high] is drawn from anew for each iteration.
    episode_steps: Count | Annotated[tuple[Count, Count], Field(strict=False)] = (5, 16)
    batches_per_epoch: Count | Literal["all"] = 8
    batch_size: Count = 48
    episode_end: Literal["terminate", "truncate"] = "terminate"
    # Iterations between validation episodes that choose the best checkpoint
    validate_every: Count = 20
    # Findings that end the run; spent budgets always do
    stop_on: Literal["never", "critical", "high"] = "critical"
    host_optimizer: HostOptimizer = HostOptimizer()
    lifecycle: Lifecycle = Lifecycle()
    price: NonNegative = 0.0  # points that parameters must earn, for each time the host's own that are added and kept
    # What remains allowed, by head; all where it names none.
    actions: dict[str, Choices] = {
        "op": ("WAIT", "GERMINATE", "PRUNE", "FOSSILIZE"),
        "style": ("linear_add",),
        "tempo": (0,),
        "alpha_target": (1.0,),
        "alpha_speed": (0,),
        "alpha_curve": ("LINEAR",),
    }
    reward: Reward = Reward()
    governor: Governor = Governor()
    policy: Policy = Policy()
    ppo: PPOParams = PPOParams()

    @property
    def shortest_episode(self) -> int:
        return self.episode_steps if isinstance(self.episode_steps, int) else self.episode_steps[0]

    @property
    def longest_episode(self) -> int:
        return self.episode_steps if isinstance(self.episode_steps, int) else self.episode_steps[1]

    @property
    def middle_episode(self) -> int:
        """Return the length at which the policy is validated."""
        return (self.shortest_episode + self.longest_episode + 1) // 2

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.shortest_episode > self.longest_episode:
            raise ValueError(
                f"episode_steps ({self.shortest_episode}, {self.longest_episode}): must be low, high"
            )
        # A minibatch is made of whole hosts, and all minibatches weigh the same.
        if self.envs % self.ppo.minibatches:
            raise ValueError(
                f"envs ({self.envs}) must be a multiple of ppo.minibatches ({self.ppo.minibatches})"
            )
        return self


RuleName = Literal["static", "random_legal", "tuned_rule", "patient"]


class GymFloors(Tree):
    """Who plays a Gymnasium environment before anything is learned; random legal actions always do."""

    rules: Annotated[tuple[str, ...], Field(strict=False), Once] = ()  # of @rule in an extension
    # Environment steps that sb3 or sb3-contrib learns for, where installed; 0: nobody does
    peer_steps: Steps = 0
    peer_memory: bool = False  # without masks: whether it has an LSTM
    # By its own names; it learns with each of them, and the best counts.
    peer_settings: Annotated[
        tuple[dict[str, JsonValue], ...], Field(strict=False, min_length=1)
    ] = ({},)


class Headroom(Tree):
    """The measurement of what can be won before anything is learned: hand-written rules, a search over schedules."""

    policies: Annotated[tuple[RuleName, ...], Field(strict=False, min_length=1), Once] = get_args(
        RuleName
    )[:3]
    schedules: Count = 32  # at most; all with one seed are among them
    steps: Annotated[tuple[Steps, ...], Field(strict=False, min_length=1), Once] = (
        0,
    )  # when the first germinates
    search_tasks: Count = 192  # tasks of training on which the common schedule is chosen
    floors: bool = True  # a linear classifier and static networks of several sizes
    # Use the headroom that ships with simic, if it was measured on the same data with the same settings
    shipped: bool = True
    gym: GymFloors = GymFloors()


PolicyName = Literal["learned", "learned_sampled", "blind"]


class Evaluate(Tree):
    """The measurement of the trained policy on held-out tasks."""

    policies: Annotated[tuple[PolicyName, ...], Field(strict=False, min_length=1), Once] = get_args(
        PolicyName
    )
    # Lengths of the episodes that are played, the one that is reported first; null: train.episode_steps, at most.
    epochs: Annotated[tuple[Count, ...], Field(strict=False, min_length=1), Once] | None = (
        12,
        6,
        9,
        16,
    )
    # Hosts, at least; every held-out task gets as many
    eval_seeds: Annotated[int, Field(ge=2, le=10_000)] = 20
    # The networks that the first policy ended with, trained from the first step
    static_final: bool = True
    checkpoint: Literal["best", "latest"] = "best"


class Range(Tree):
    """Numbers from ``low`` to ``high``, whole ones where both are; ``log``: equally likely in every order of size."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low >= self.high or (self.log and self.low <= 0):
            raise ValueError("low must be below high, and with log above 0")
        return self


Scalar = str | int | float | bool | None
Options = Annotated[tuple[Scalar, ...], Field(strict=False, min_length=1), Once]


class Tune(Tree):
    """A search for better params of training, by their validation score."""

    trials: Count = 30
    # By key: a range, or a list of values
    space: dict[Annotated[str, Field(pattern=r"^train\..")], Range | Options] = {}


class Audit(Tree):
    """The audit of the run: whether parts of it are played again, and which findings fail the stage."""

    replay: bool = True
    fail_on: Literal["never", "critical", "high", "medium"] = "never"


class Runtime(Tree):
    """Settings of this machine: no stage's parameter, never in a fingerprint."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    # Cores that work at once on a CPU, and threads of a single operation of torch; "auto": all cores, with one thread
    # each. With CUDA torchrun starts a process for each GPU.
    cores: Workers | Literal["auto"] = "auto"
    threads: Workers | Literal["auto"] = "auto"
    backend: Literal["auto", "loop", "vmap"] = "auto"
    checkpoint_every: Count = 1
    keep_last: Count = 3
    auto_resume: Steps = 5
    tf32: bool = False
    progress: Literal["auto", "rich", "plain", "none"] = "auto"


ExtensionName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class _Extended(BaseModel):
    """The key that is read before the others: the files that it names may make their values valid."""

    model_config = ConfigDict(frozen=True, strict=True)

    extensions: Annotated[
        tuple[ExtensionName, ...], Field(strict=False), Once
    ] = ()  # NAME of extensions/NAME.py


class Params(Tree, _Extended):
    """The whole of params.yaml."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the lengths of the episodes that headroom and evaluation play, the primary one first."""
        return self.evaluate.epochs or (self.train.longest_episode,)

    @model_validator(mode="after")
    def _rollout_of_an_environment(self) -> Self:
        if self.prepare.is_gym and not isinstance(self.train.episode_steps, int):
            raise ValueError(
                "train.episode_steps must be one number for task gym: the steps of a rollout"
            )
        return self

    rng_seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1
    prepare: Prepare = Prepare()
    headroom: Headroom = Headroom()
    train: Train = Train()
    evaluate: Evaluate = Evaluate()
    tune: Tune = Tune()
    audit: Audit = Audit()
    runtime: Runtime = Runtime()


def load(
    path: Path,
    overrides: list[str] | None = None,
    whole: bool = True,
    extensions: Path | None = None,
) -> Params:
    """Return the params of a file, with ``key.path=value`` overrides in DVC's ``-S`` syntax; SimicError if anything is
    wrong.

    Args:
        path: Of the file.
        overrides: Values that replace those of the file, in this order.
        whole: Whether every section must be there, or the file was cut off; else it gives some values.
        extensions: Folder of the user's files; by default the one beside the file.
    """
    tree, folder = read_tree(path, overrides), extensions or path.parent / EXTENSIONS_FOLDER
    # Defaults would hide that an editor or a full disk cut the file. It may be older than tune, which decides nothing.
    missing = [key for key in Params.model_fields if key not in (*tree, "tune")]
    if whole and missing:
        raise SimicError(
            f"{path}: cut off? It lacks {', '.join(missing)}; git checkout {path.name} restores it"
        )
    if not overrides:
        return validate(tree, str(path), folder)
    try:
        return _validated(tree, folder)
    except ValidationError as error:
        validate(
            read_tree(path), str(path), folder
        )  # what is wrong with the file is not blamed on -S
        given = " ".join(f"-S {short(each)}" for each in overrides)
        raise refusal(error, given, tree, Params) from None


def validate(
    tree: dict[str, Any], source: str, extensions: Path = Path(EXTENSIONS_FOLDER)
) -> Params:
    """Return the frozen tree; SimicError that names every offending key, its value and what is allowed.

    Args:
        tree: The raw mapping.
        source: Where it comes from, for the message.
        extensions: Folder of the user's files. Those that the tree names are imported first: they may add tasks, hosts
            and reward modes.
    """
    try:
        return _validated(tree, extensions)
    except ValidationError as error:
        raise refusal(error, source, tree, Params) from None


def _validated(tree: dict[str, Any], extensions: Path) -> Params:
    # Extensions come first: they register the names that the rest is checked against.
    for name in _Extended.model_validate(tree).extensions:
        registry.load_extension(extensions / f"{name}.py")
    return Params.model_validate(tree)


def digest(*trees: BaseModel | dict[str, Any] | list[str] | str | int) -> str:
    """Return the sha256 (hex) of the canonical JSON of the given sections."""
    # With sorted keys below: neither the order of a file nor that of an override decides.
    plain = [
        tree.model_dump(mode="json") if isinstance(tree, BaseModel) else tree for tree in trees
    ]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Describe the leaves that differ between two trees, by dotted name, each as ``old → new``.

    Args:
        old: The one tree.
        new: The other.
        prefix: Of the names, as of the section that both are.
    """
    changed: dict[str, str] = {}
    # Sections recurse; anything else is compared as a whole, lists too.
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changed |= differences(before, after, f"{prefix}{key}.")
        elif before != after:
            changed[f"{prefix}{key}"] = f"{before} → {after}"
    return changed


# Far above what any params file needs; a file beyond them is a mistake, or made to exhaust the reader.
MAX_BYTES, MAX_DEPTH, MAX_VALUES = 1_000_000, 20, 10_000


def read_tree(path: Path, overrides: list[str] | None = None) -> dict[str, Any]:
    """Return the raw mapping of a params file with overrides applied, not yet validated."""
    # The reader that TextIOWrapper makes knows every kind of line end.
    content = read_file(path, MAX_BYTES, "run from the project's root or pass --params FILE")
    try:
        text = io.TextIOWrapper(io.BytesIO(content), "utf-8").read()
    except UnicodeDecodeError as error:
        raise SimicError(f"{path}: not readable as YAML: byte {error.start} is not UTF-8") from None
    tree = parse(text, str(path))
    if not isinstance(tree, dict):
        kind = "empty" if tree is None else f"a {type(tree).__name__}"
        raise SimicError(
            f"{path}: must be a mapping of sections, not {kind}; git checkout {path.name} restores it"
        )
    for override in overrides or []:
        _apply(tree, override)
    return tree


def parse(text: str, source: str) -> Any:
    """Return YAML as plain mappings, lists, strings, numbers, booleans and nulls; SimicError for all else."""
    try:
        # Events first: deep nesting would exhaust the parser that builds values.
        _refuse_tags_and_depth(text, source)
        value = YAML(typ="safe").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" in line {mark.line + 1}"
        raise SimicError(
            f"{source}: not readable as YAML: {error.problem or error.context}{where}"
        ) from None
    except (YAMLError, ValueError) as error:
        raise SimicError(f"{source}: not readable as YAML: {str(error).splitlines()[0]}") from None
    # Last: by now anchors are resolved, and what they became can be counted.
    return _Plain(source).copy(value, ())


def _refuse_tags_and_depth(text: str, source: str) -> None:
    """Raise SimicError for tags, which ask for other types, and for nesting deeper than any params have."""
    # A tag may ask for any Python type, also where the loader is called safe.
    depth = 0
    for event in YAML(typ="safe").parse(text):
        name, line = type(event).__name__, event.start_mark.line + 1
        depth += name in ("MappingStartEvent", "SequenceStartEvent")
        depth -= name in ("MappingEndEvent", "SequenceEndEvent")
        if depth > MAX_DEPTH:
            raise SimicError(f"{source}: nested more than {MAX_DEPTH} deep in line {line}")
        if getattr(event, "tag", None):
            raise SimicError(
                f"{source}: tag {event.tag!r} in line {line}: must be plain YAML without tags"
            )


class _Plain:
    """Copy parsed YAML as plain values; anchors multiply, so number and depth are limited again."""

    def __init__(self, source: str) -> None:
        self.source, self.values = source, 0

    def copy(self, value: Any, where: tuple[str, ...]) -> Any:
        # Counted where values are used, since ten nested anchors of ten make ten billion.
        self.values += 1
        if self.values > MAX_VALUES or len(where) > MAX_DEPTH:
            raise SimicError(
                f"{self.source}: more than {MAX_VALUES} values or {MAX_DEPTH} levels: its anchors repeat"
            )
        if isinstance(value, dict):
            if strange := [key for key in value if not isinstance(key, str)]:
                raise SimicError(f"{self.source}: key {strange[0]!r}: must be a word")
            return {key: self.copy(each, (*where, key)) for key, each in value.items()}
        if isinstance(value, list):
            return [self.copy(each, (*where, str(place))) for place, each in enumerate(value)]
        if value is None or isinstance(value, str | bool | int | float):
            return value
        kind = type(value).__name__
        raise SimicError(
            f"{self.source}: {'.'.join(where)} = {value}: is a {kind} in YAML; put it in quotes"
        )


def value_at(tree: Mapping[str, Any], key_path: str) -> Any:
    """Read the value at a dotted key of a raw mapping; None where there is none."""
    value: Any = tree
    for key in key_path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _apply(tree: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    source = f"-S {short(override)}"
    if not equals or not all(name.split(".")):
        raise SimicError(
            f"{source}: must be KEY.PATH=VALUE, for example train.ppo.learning_rate=1e-4"
        )
    # As YAML, so that numbers, lists and null mean what they mean in the file.
    value = parse(text, source)
    *sections, leaf = name.split(".")
    for section in sections:
        # A section that is missing is made: validation says whether there is such a one.
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise SimicError(f"{source}: {short(section)} is a value, not a section")
    tree[leaf] = value


def refuse_repeated(overrides: list[str] | None) -> list[str] | None:
    """Return the overrides; SimicError where a later one would undo an earlier one."""
    seen = list[str]()
    for override in overrides or []:
        key = override.partition("=")[0]
        # A section that is set after one of its keys would silently take that back.
        for earlier in seen:
            if f"{earlier.partition('=')[0]}.".startswith(f"{key}."):
                raise SimicError(f"-S {override}: undoes -S {earlier}; give {key} once")
        seen.append(override)
    return overrides
