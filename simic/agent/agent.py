"""The agent on any Gymnasium environment: train, save, load, continue, evaluate."""

import csv
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, Literal, Self, SupportsIndex, TypeVar, get_args

import numpy as np
import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from simic import durable, params, rng
from simic.agent.callbacks import Callback, IterationReport, Watching
from simic.agent.core import RecurrentState, refuse_other_state
from simic.agent.export import DESCRIPTION, ONNX_PROGRAM, PROGRAM, program_files
from simic.agent.gym_adapter import Make, Vector, refuse_shared, vectorized
from simic.agent.hub import AGENT_FILE, HUB_FILES, hub_files
from simic.agent.imitation import Demonstrations, imitate, refuse_illegal
from simic.agent.leaf_encoder import EncoderFactory, LeafEncoder, encoded_leaves
from simic.agent.learner import build_learner
from simic.agent.metrics import numbers
from simic.agent.play import play, policy_decides
from simic.agent.policy import ActorCritic, part_of, refuse_mismatch
from simic.agent.ppo import with_advantages
from simic.agent.repeatable import repeatable
from simic.agent.rollout import Position, StepRecord, collect
from simic.agent.spec import ActionSpec, ObservationSpec
from simic.agent.tensor_env import on_tensors
from simic.errors import SimicError
from simic.memory import refuse_too_much
from simic.torch_modes import usual_modes
from simic.validation_messages import refusal, short, whole_number

PLAY_ITERATION = 1 << 42  # a namespace of its own: other starts and other noise than in training
CARD = "simic.agent"  # what a saved file's metadata are under
FORMAT_VERSION = 4
RUNNING = "normalizers/reward.running"  # a tensor of it, by environment
EPISODES = "running/"  # of the names of what repeats running episodes
MOST_ENVS = 10_000  # side by side in one process
BYTES_OF_STEP = 100  # of a rollout at least, beside features
ExportFormat = Literal["torch", "onnx", "hub"]
FORMAT_FILES: dict[str, set[str]] = {
    "torch": {PROGRAM, DESCRIPTION},
    "onnx": {ONNX_PROGRAM, DESCRIPTION},
    "hub": {PROGRAM, DESCRIPTION, *HUB_FILES},
}
MOST_SHOWN = 300  # characters of how an environment is described, in a message
ANSWER_TOLERANCE = {"rel_tol": 1e-3, "abs_tol": 1e-6}  # far above rounding on another machine
Section = TypeVar("Section", bound=params.Tree)
LOG_FILE = "progress.csv"
LOG_BEGINS = "env_steps,episode_return,"
LOG_EPISODES = 100  # whose mean return is written

_log = logging.getLogger(__name__)


# For environments in general. The values of params.yaml are for short episodes with one score in points: neither
# discounted nor scaled, and learned from until the rate has fallen.
SIZES = {"core": "lstm", "encoder_units": 128, "core_units": 128, "critic": "own"}
SETTINGS = {
    "learning_rate": 1e-3,
    "learning_rate_schedule": "constant",
    "epochs": 4,
    "entropy_coef": 0.01,
    "entropy_coef_final": 0.001,
    "gamma": 0.995,
    "normalize_rewards": True,
}


def sizes(**changes: Any) -> params.Policy:
    """Make the sizes of a policy for environments in general, with these changes."""
    return _made("sizes", params.Policy, SIZES | changes)


def settings(**changes: Any) -> params.PPOParams:
    """Make PPO's settings for environments in general, with these changes."""
    return _made("settings", params.PPOParams, SETTINGS | changes)


def _made(source: str, model: type[Section], values: dict[str, Any]) -> Section:
    try:
        return model(**values)
    except ValidationError as error:
        raise refusal(error, f"{source}()", values, model) from None


class Card(params.Tree):
    """What a saved file says of its agent: all that the constructor takes."""

    format_version: Literal[4] = FORMAT_VERSION
    env: str | None
    # Lines of ``GymAdapter.description``, which another environment's must equal.
    spaces: list[str]
    rng_seed: int
    envs: Annotated[int, Field(ge=1, le=MOST_ENVS)]
    rollout_steps: params.Count
    policy: params.Policy
    ppo: params.PPOParams
    # By leaf, what the user's modules make of a fixed input.
    encoders: Annotated[dict[str, float], Field(default_factory=dict)]
    iteration: Annotated[int, Field(ge=0, le=2**53)]


class Agent:
    """A policy, its optimizer and scales, and the environments it learns from.

    Args:
        env: A registered id, or a function that makes an environment.
        rng_seed: Every draw is a hash of it.
        envs: How many environments run side by side.
        rollout_steps: How many steps of each make an update.
        policy: Its sizes; ``sizes()`` by default.
        ppo: Its settings; ``settings()`` by default.
        log: A folder, to whose ``progress.csv`` a line per update goes; a new agent starts it anew.
        vector: ``one``: all environments in this process. ``processes``: each in one of its own, for slow ones; the
            result is the same. ``tensors``: the id's own vector environment on tensors, or that of a function of their
            number (``TensorEnv``).
        encoders: By the name of a leaf of the observation (``encoded_leaves``), a function that makes a module from its
            space; that turns ``[N, *shape]``, scaled as usual, into ``[N, units]``.

    Raises:
        SimicError: A value is out of range, or the environment cannot be learned from.
    """

    @usual_modes()
    def __init__(
        self,
        env: Make,
        *,
        rng_seed: SupportsIndex = 1,
        envs: SupportsIndex = 8,
        rollout_steps: SupportsIndex = 128,
        policy: params.Policy | None = None,
        ppo: params.PPOParams | None = None,
        log: str | Path | None = None,
        vector: Vector = "one",
        encoders: Mapping[str, EncoderFactory] | None = None,
    ) -> None:
        # Settings, refused before an environment is made.
        rows = whole_number("envs", envs, 1, MOST_ENVS)
        self.rng_seed = whole_number("rng_seed", rng_seed, -(2**63), 2**64)
        self.rollout_steps = whole_number("rollout_steps", rollout_steps, 1)
        self.make = env
        self.sizes = sizes() if policy is None else policy
        self.settings = settings() if ppo is None else ppo
        if not isinstance(self.sizes, params.Policy):
            raise SimicError(f"policy = {policy!r}: must be made by sizes()")
        if not isinstance(self.settings, params.PPOParams):
            raise SimicError(f"ppo = {ppo!r}: must be made by settings()")
        # With memory a minibatch is made of whole environments.
        if self.sizes.core != "none" and rows < self.settings.minibatches:
            least = self.settings.minibatches
            raise SimicError(
                f"envs = {rows}: must be at least ppo.minibatches ({least}) where the policy has memory"
            )
        self.log = None if log is None else durable.file_path(durable.user_path(log) / LOG_FILE)
        self.vector: Vector = vector
        self.env = (
            on_tensors(env, self.rng_seed, torch.arange(rows))
            if vector == "tensors"
            else repeatable(env, rows, self.rng_seed, vector)
        )
        # Raw and normalised features, pixels, and what else is noted of a step.
        spec = self.env.observation_spec
        pixels = spec.pixels * np.dtype(spec.pixel_dtype).itemsize
        step = BYTES_OF_STEP + 8 * spec.features + pixels
        refuse_too_much("a rollout", self.rollout_steps * rows * step, "rollout_steps or envs")
        # Modules of the user's are made with the policy.
        self._encoders = encoded_leaves(self.env.layout, encoders or {})
        # The schedules' length is set by each call of train.
        learner = build_learner(
            self.env.action_spec,
            self.env.observation_spec,
            self.sizes,
            self.settings,
            self.rng_seed,
            rows,
            total_updates=1,
            device=self.env.env_ids.device,
            encoders=self._encoders,
        )
        self.policy = learner.policy
        self.ppo = learner.ppo
        self.normalizers = learner.normalizers
        self.iteration = 0
        self._position: Position | None = None
        self._running: dict[
            str, Tensor
        ] = {}  # what repeats the episodes at the end of the last update
        self._returns: list[float] = []  # of the episodes that ended in this call of train

    @property
    def env_steps(self) -> int:
        """Steps that were taken in training so far."""
        return self.iteration * self.rollout_steps * self.env.num_envs

    @usual_modes()
    def train(
        self, steps: SupportsIndex, *callbacks: Callback | Callable[[IterationReport], Any]
    ) -> list[float]:
        """Train for at least so many steps more, in whole updates.

        Episodes go on from call to call, after ``load`` too: there they are played again from their seeds and actions.
        The entropy coefficient falls until the last update of the call.

        Args:
            steps: Of all environments together.
            callbacks: Watch, in this order, and may end it (``simic.agent.callbacks``); a function is called after each
                update.

        Returns:
            The undiscounted returns of the episodes that ended.

        Raises:
            SimicError: A rollout that is rescored does not give the probabilities of acting.
        """
        # Rounded up.
        count = whole_number("steps", steps, 0)
        updates = -(-count // (self.rollout_steps * self.env.num_envs))
        # The schedules of an earlier call have ended: without this a second one would explore with the last coefficient
        # alone.
        self.ppo.anneal_over(updates)
        if self._position is None:
            self._position = self._begin()
        self._returns = []
        # Only now: an agent that was loaded to play leaves its log alone.
        self._cut_log()
        watching = Watching(self, callbacks)
        with watching.told(updates * self.rollout_steps * self.env.num_envs):
            for _ in range(updates):
                report = self._iterate(watching.on_step)
                self._write_log(report)
                watching.on_update(report)
                if watching.is_over:
                    break
        return self._returns

    def _begin(self) -> Position:
        """Go on in mid-episode where that was saved, else begin all episodes."""
        if self._running:
            try:
                observation = self.env.load_state_dict(self._running)
                h, c, starts = (
                    self._running[name].to(self.env.env_ids.device) for name in ("h", "c", "starts")
                )
                return Position(observation, RecurrentState(h, c), starts)
            except SimicError as error:
                # An environment that does not repeat itself must not end the training.
                _log.warning("not continued bit for bit: %s; every episode begins anew", error)
        return Position.first(self.env, self.policy, self.env.reset()[0])

    def _episodes(self, position: Position) -> dict[str, Tensor]:
        """Copy what repeats the running episodes, and the memory of them."""
        return {
            **self.env.state_dict(),
            "h": position.state.h,
            "c": position.state.c,
            "starts": position.starts,
        }

    def _iterate(self, on_step: Callable[[StepRecord], None]) -> IterationReport:
        """Collect one rollout and learn from it."""
        finished = len(self._returns)

        def on_each_step(step: StepRecord) -> None:
            # As paid; what is learned from is scaled below.
            self._returns += step.info.returns
            on_step(step)

        # None until the end: whoever trains again after an error goes on from the last whole update.
        position = self._position
        self._position = None
        rollout, end = collect(
            self.env,
            self.policy,
            self.normalizers,
            self.iteration,
            self.rng_seed,
            self.rollout_steps,
            on_step=on_each_step,
            position=position,
        )
        rewards = self.normalizers.update(
            rollout.raw_features, rollout.rewards, rollout.starts, rollout.valid
        )
        # Advantages, an update, and the check that what was learned from is what was played.
        rollout = with_advantages(rollout, rewards, self.settings.gamma, self.settings.gae_lambda)
        with torch.enable_grad():
            metrics = self.ppo.update(rollout, self.iteration)
        if not metrics.first_ratio_ok:
            raise SimicError(
                f"iteration {self.iteration}: the first ratio is off 1 by {metrics.first_ratio_deviation}"
            )
        self.iteration += 1
        # Copied now: whoever saves inside the next rollout saves this moment.
        self._position = end
        self._running = self._episodes(end)
        return IterationReport(self.iteration, self.env_steps, self._returns[finished:], metrics)

    @usual_modes()
    def imitate(self, episodes: Iterable[Sequence[Any]], epochs: SupportsIndex = 50) -> list[float]:
        """Learn to act as in recorded episodes (behaviour cloning), before ``train`` goes on from there.

        Scales of observations are learned from them too; the value is not.

        Args:
            episodes: Each ``(observations, actions)`` or ``(observations, actions, masks)``, with one of each for every
                step from the reset on, as the environment has them.
            epochs: Passes over all of them.

        Returns:
            The mean log-probability of an action in each epoch, in nats.

        Raises:
            SimicError: An episode is not of this environment, or an action is not legal.
        """
        # All of them are looked at before anything changes.
        count = whole_number("epochs", epochs, 1)
        demonstrations = Demonstrations.of(self.env, episodes)
        refuse_illegal(self.policy, demonstrations)
        # Learned once, before the first update.
        seen = demonstrations.observation
        if self.normalizers.observation is not None:
            self.normalizers.observation.update(seen.features, demonstrations.valid)
        demonstrations = replace(demonstrations, observation=self.normalizers.see(seen))
        with torch.enable_grad():
            return imitate(self.policy, demonstrations, self.settings, count, self.rng_seed)

    @usual_modes()
    def evaluate(self, episodes: SupportsIndex = 24, greedy: bool = True) -> list[float]:
        """Play in environments of their own.

        Args:
            episodes: How many altogether; equally many of each environment.
            greedy: Take the likeliest choices; else sample.

        Returns:
            The undiscounted returns.
        """
        # As many environments as divide the episodes, so that each plays the same number of them.
        count = whole_number("episodes", episodes, 1)
        rows = math.gcd(count, self.env.num_envs)
        env = (
            on_tensors(self.make, self.rng_seed, torch.arange(rows), PLAY_ITERATION)
            if self.vector == "tensors"
            else vectorized(self.make, rows, self.rng_seed, self.vector)
        )
        # Before it could be closed: it may be the one of training.
        refuse_shared(self.env, env)

        # Keyed by a namespace and a step of its own: sampling here takes nothing from the draws of training.
        def noise(step: int) -> Tensor:
            stream = rng.key(self.rng_seed, rng.Purpose.ACTION, PLAY_ITERATION, env.env_ids, step)
            return rng.uniform(stream, (self.policy.action_spec.width,))

        try:
            decide = policy_decides(
                self.policy, self.normalizers, env.num_envs, None if greedy else noise
            )
            return play(
                env, decide, count // env.num_envs, options={"iteration": PLAY_ITERATION}
            ).returns
        finally:
            env.close()

    @usual_modes()
    def predict(
        self, observation: Any, state: RecurrentState | None = None, mask: Any = None
    ) -> tuple[Any, RecurrentState]:
        """Decide greedily in one environment.

        Args:
            observation: As the environment gives it.
            state: The memory that the call before returned; None at the start of an episode.
            mask: What the environment says is legal; None where it says nothing of it.

        Returns:
            The action as the environment takes it, and the memory for the next call.

        Raises:
            SimicError: The observation or the mask is not of this environment, a number is not finite, or nothing is
                legal.
        """
        actions, state = self.predict_batch([observation], state, None if mask is None else [mask])
        return actions[0], state

    @usual_modes()
    def predict_batch(
        self,
        observations: Sequence[Any] | np.ndarray,
        state: RecurrentState | None = None,
        masks: Sequence[Any] | np.ndarray | None = None,
    ) -> tuple[list[Any], RecurrentState]:
        """Decide greedily in several environments at once.

        Args:
            observations: One of each environment, as it gives them: a list, or an array ``[N, ...]``.
            state: The memory that the call before returned, in the same order; None where all episodes start. Where
                some start: ``state.zeroed(rows)``, bool ``[N]``.
            masks: What each environment says is legal; None where they say nothing of it.

        Returns:
            The actions as the environments take them, and the memory for the next call.

        Raises:
            SimicError: As of ``predict``; or the memory is not of this policy and as many rows.
        """
        seen = self.normalizers.see(self.env.rows(observations, masks))
        first = self.policy.initial_state(len(seen.features))
        state = first if state is None else state
        refuse_other_state(state, first)
        decision = self.policy.act(seen, state, noise=None)
        return [self.env.to_env(action) for action in decision.actions], decision.state

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all: all tensors, and the settings as JSON in its metadata."""
        durable.replace_file(durable.file_path(path), self._content())

    def _card(self) -> dict[str, Any]:
        # All else is a tensor, or follows from these.
        card = Card(
            env=self.make if isinstance(self.make, str) else None,
            spaces=self.env.description,
            rng_seed=self.rng_seed,
            envs=self.env.num_envs,
            rollout_steps=self.rollout_steps,
            policy=self.sizes,
            ppo=self.settings,
            encoders=self._answers(),
            iteration=self.iteration,
        )
        return card.model_dump(mode="json")

    def _answers(self) -> dict[str, float]:
        """Ask the user's modules of the actor what they make of a fixed input, by leaf."""
        actor = self.policy.actor
        modules = [part for part in (*actor.images, *actor.leaves) if isinstance(part, LeafEncoder)]
        names = [encoded.leaf.name for encoded in self._encoders]
        device = self.policy.like.device
        return {name: module.answer(device) for name, module in zip(names, modules, strict=True)}

    def _content(self) -> bytes:
        return save(self.tensors(), {CARD: json.dumps(self._card())})

    @usual_modes()
    def export(
        self, path: str | Path, format: ExportFormat = "torch", returns: Sequence[float] = ()
    ) -> None:
        """Write the greedy policy, its scales and its memory as a program that runs without simic.

        Beside the program is ``policy.json``, which says what goes in and comes out, column by column.

        Args:
            path: A folder that is new, empty or an earlier export of this format; written whole or not at all.
            format: ``torch``: policy.pt2, for ``torch.export.load``. ``onnx``: policy.onnx. ``hub``: as a model
                repository of Hugging Face Hub: a card, the settings, the agent for ``load``, and policy.pt2.
            returns: Of an evaluation, for the card.

        Raises:
            SimicError: The folder has other files, the format is unknown, or ONNX's libraries are missing.
        """
        if format not in get_args(ExportFormat):
            formats = ", ".join(get_args(ExportFormat))
            raise SimicError(f"format = {format!r}: must be one of {formats}")
        try:
            scores = np.asarray(returns, np.float64)
        except (TypeError, ValueError):
            scores = np.asarray(math.nan)
        if scores.ndim != 1 or not np.isfinite(scores).all():
            raise SimicError(f"returns = {short(repr(returns))}: must be a list of finite numbers")
        if len(returns) and format != "hub":
            raise SimicError(f"returns: format {format!r} has no card that could say them")
        # Refused before seconds are spent on tracing. An earlier export is replaced.
        folder = durable.user_path(path)
        durable.refuse_file_above(folder)
        present = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
        if DESCRIPTION not in present or not present <= FORMAT_FILES[format]:
            durable.refuse_full(folder)
        # Which heads are masked is known once something was observed.
        if self.env.masked is None:
            self.env.reset()
        # A repository has more than the program.
        files: dict[str, bytes] = {}
        if format == "hub":
            weights = sum(weight.numel() for weight in self.policy.parameters())
            made_by = getattr(self.make, "__name__", "an environment without an id")
            name = self.make if isinstance(self.make, str) else made_by
            files = hub_files(self._card(), name, weights, self.env_steps, returns)
            files[AGENT_FILE] = self._content()
        files |= program_files(
            self.policy,
            self.normalizers.observation,
            self.env.masked,
            self.env.layout,
            ONNX_PROGRAM if format == "onnx" else PROGRAM,
        )
        with durable.new_directory(folder) as temporary:
            for file, content in files.items():
                durable.write_synced(temporary / file, content)

    @classmethod
    @usual_modes()
    def load(
        cls,
        path: str | Path,
        env: Make | None = None,
        log: str | Path | None = None,
        envs: SupportsIndex | None = None,
        vector: Vector = "one",
        encoders: Mapping[str, EncoderFactory] | None = None,
    ) -> Self:
        """Load an agent that was saved, to go on exactly from there.

        Args:
            path: What ``save`` wrote, or the folder of a ``hub`` export.
            env: What makes the environment, where that was no registered id.
            log: As of a new agent.
            envs: Another number of environments side by side.
            vector: As of a new agent.
            encoders: Those that the agent was made with.

        Raises:
            SimicError: The file is not readable, is not a saved agent, or is one of another environment.
        """
        # What is in the file, whoever wrote it: safetensors holds no code, and the settings are validated.
        path = durable.user_path(path)
        if path.is_dir():
            path = path / AGENT_FILE
        card, tensors = _read(path)
        make = card.env if env is None else env
        if make is None:
            raise SimicError(
                f"{path}: its environment has no registered id; pass what makes it: Agent.load(path, env)"
            )
        # Gymnasium imports the module of such an id: that is the caller's to say, not the file's.
        if env is None and ":" in str(make):
            raise SimicError(
                f"{path}: its environment {make!r} is in a module that loading would import;"
                f" if you trust it: Agent.load(path, {make!r})"
            )
        given = encoders if isinstance(encoders, Mapping) else {}
        if set(given) != set(card.encoders):
            names = ", ".join(card.encoders) or "none"
            raise SimicError(
                f"{path}: its agent has encoders for {names}: pass the same: Agent.load(path, encoders=...)"
            )
        # An untrained agent with these settings, whose tensors are then exchanged.
        agent = cls(
            make,
            rng_seed=card.rng_seed,
            envs=card.envs if envs is None else envs,
            rollout_steps=card.rollout_steps,
            policy=card.policy,
            ppo=card.ppo,
            log=log,
            vector=vector,
            encoders=encoders,
        )
        _refuse_other_spaces(path, card.spaces, agent.env.description)
        # Of another number of environments all begin anew.
        running = part_of(tensors, EPISODES)
        tensors = {name: x for name, x in tensors.items() if not name.startswith(EPISODES)}
        if agent.env.num_envs != card.envs:
            running = {}
            if RUNNING in tensors:
                tensors[RUNNING] = torch.zeros(agent.env.num_envs, dtype=torch.float64)
        refuse_mismatch(str(path), agent.tensors(), tensors)
        if running:
            # The first axis of actions is time.
            rows = {name: x[:0] if name == "actions" else x for name, x in running.items()}
            refuse_mismatch(str(path), agent._episodes(agent._begin()), rows)
            agent._running = running
        # The weights are among PPO's tensors, beside their moments.
        agent.ppo.load_state_dict(part_of(tensors, "ppo/"))
        agent.normalizers.load_state_dict(part_of(tensors, "normalizers/"))
        # The same weights may serve another computation.
        for name, answer in agent._answers().items():
            if not math.isclose(answer, card.encoders[name], **ANSWER_TOLERANCE):
                raise SimicError(
                    f"{path}: encoders[{name!r}] computes something else than the one that was saved"
                )
        agent.iteration = card.iteration
        return agent

    def tensors(self) -> dict[str, Tensor]:
        """Copy all that learning has changed, and what repeats the running episodes, by name."""
        parts = {
            "ppo/": self.ppo.state_dict(),
            "normalizers/": self.normalizers.state_dict(),
            EPISODES: self._running,
        }
        return {
            f"{prefix}{name}": tensor
            for prefix, part in parts.items()
            for name, tensor in part.items()
        }

    def close(self) -> None:
        """Close the environments of training."""
        self.env.close()

    def _cut_log(self) -> None:
        """Drop rows beyond this agent's steps: they are of a run that was never saved."""
        if self.log is None or not self.log.exists():
            return
        # A pipe of that name would be read without end.
        if not self.log.is_file():
            raise SimicError(
                f"{self.log}: must be a regular file; choose another folder for the log"
            )
        header, *lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines(
            keepends=True
        ) or [""]
        if header and not header.startswith(LOG_BEGINS):
            raise SimicError(
                f"{self.log}: is a file of another program; choose another folder for the log"
            )
        # A line without its end was cut off by a kill.
        rows = []
        for line in lines:
            env_steps = line.partition(",")[0]
            if line.endswith("\n") and env_steps.isdecimal() and int(env_steps) <= self.env_steps:
                rows.append(line)
        durable.replace_file(self.log, "".join([header, *rows] if rows else []).encode())

    def _write_log(self, report: IterationReport) -> None:
        if self.log is None:
            return
        # Over many episodes: the few that end in one update make a mean that jumps.
        returns = self._returns[-LOG_EPISODES:]
        row = {
            "env_steps": report.env_steps,
            "episode_return": math.fsum(returns) / len(returns) if returns else math.nan,
            "episodes": len(report.returns),
            **numbers(asdict(report.metrics)),
        }
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            # A run that goes on appends to the file and must not repeat the header.
            if not file.tell():
                writer.writeheader()
            writer.writerow(row)


def _refuse_other_spaces(path: Path, saved: list[str], present: list[str]) -> None:
    """Raise SimicError where an environment is described in other lines than the one of a saved agent."""
    if saved == present:
        return
    # All lines, where only their order differs.
    lost = [line for line in saved if line not in present]
    new = [line for line in present if line not in saved]
    lost, new = (lost, new) if lost or new else (saved, present)
    saved_text, present_text = ("; ".join(lines) or "nothing more" for lines in (lost, new))
    raise SimicError(
        f"{path}: saved with {shorten(saved_text, MOST_SHOWN)}, where this environment has"
        f" {shorten(present_text, MOST_SHOWN)}; pass the one it was trained in: Agent.load(path, env)"
    )


def _read(path: Path) -> tuple[Card, dict[str, Tensor]]:
    """Read a saved file; SimicError where it is none, or its description asks for more than it holds."""
    # Opening a pipe would wait for a writer.
    if path.exists() and not path.is_file():
        raise SimicError(f"{path}: must be a regular file")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            text = (file.metadata() or {})[CARD]
        version = json.loads(text)["format_version"]
        if version != FORMAT_VERSION:
            raise SimicError(f"{path}: format version {version}: must be {FORMAT_VERSION}")
        card = Card.model_validate_json(text)
    except OSError as error:
        raise SimicError(f"{path}: not readable: {error.strerror or error}") from None
    except (SafetensorError, ValidationError, ValueError, KeyError, TypeError, RecursionError):
        raise SimicError(f"{path}: not an agent that Agent.save wrote") from None
    # Whatever the environment, a policy of these sizes has at least the weights of the smallest one.
    smallest = ActorCritic.outline(ActionSpec.discrete(1), ObservationSpec(1), card.policy)
    needed = sum(weight.numel() for weight in smallest.parameters())
    available = sum(weight.numel() for weight in part_of(tensors, "ppo/policy.").values())
    running = tensors.get(RUNNING)
    if available < needed or (running is not None and running.shape != (card.envs,)):
        raise SimicError(f"{path}: its description asks for other sizes than its tensors have")
    return card, tensors
