"""A trained policy on its own: weights, frozen observation scales and the specs to build it, without an environment."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from simic import durable, params, safe_read
from simic.agent.normalization import Normalizers, ObservationNormalizer
from simic.agent.policy import ActorCritic, part_of, refuse_mismatch
from simic.agent.spec import ActionSpec, ObservationSpec
from simic.envs.actions import to_action
from simic.envs.play import Episode, Situation
from simic.errors import SimicError
from simic.growth.life.vocabulary import Action
from simic.memory import machine_bytes
from simic.training.checkpoint import Checkpoint

WEIGHTS_FILE = "weights.safetensors"
CARD_FILE = "policy.json"
FORMAT_VERSION = 5
MOST_CARD_BYTES = 2**24
# How often the weights are held in memory at least.
COPIES = 3
RESTORED = (
    "give the folder of another, or bring it back: of this project's own, dvc checkout models"
)


@dataclass(frozen=True)
class Learned:
    """The policy in evaluation mode with what it was trained as; ``normalizers.see`` comes before ``policy.act``."""

    policy: ActorCritic
    normalizers: Normalizers
    specs: dict[str, Any]
    train: params.Train
    iteration: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, device: torch.device | str = "cpu") -> Self:
        """Take the policy out of a verified checkpoint."""
        manifest = checkpoint.manifest
        train = params.Train.model_validate_json(json.dumps(manifest.params["train"]))
        weights = part_of(checkpoint.tensors, "ppo/policy.")
        scales = part_of(checkpoint.tensors, "normalizers/")
        return cls._build(manifest.specs, train, manifest.iteration, weights, scales, device)

    @classmethod
    def _build(
        cls,
        specs: dict[str, Any],
        train: params.Train,
        iteration: int,
        weights: dict[str, Tensor],
        scales: dict[str, Tensor],
        device: torch.device | str,
    ) -> Self:
        # Compared before anything is allocated: a description may ask for more than there is.
        action_spec, observation_spec = parse_specs(specs)
        parts = action_spec, observation_spec, train.policy
        expected = ActorCritic.outline(*parts).state_dict()
        refuse_mismatch(f"the policy after {iteration} iterations", expected, weights)
        # A policy of these sizes takes over weights, then scales; nothing of it learns any more.
        policy = ActorCritic(*parts, None)
        policy.load_state_dict(weights)
        # A policy that saw raw features has no scales in its file, and gets none here.
        scales = {name: part for name, part in scales.items() if name.startswith("observation.")}
        normalizers = Normalizers(
            ObservationNormalizer(observation_spec, device) if scales else None
        )
        refuse_mismatch("the policy's scales", normalizers.state_dict(), scales)
        normalizers.load_state_dict(scales)
        policy = policy.to(device).eval().requires_grad_(False)
        return cls(policy, normalizers, specs, train, iteration)

    def actor(self, greedy: bool) -> "LearnedActor":
        return LearnedActor(self.policy, self.normalizers, greedy)

    def save(self, target: Path) -> None:
        """Write ``target`` as a whole: weights.safetensors and policy.json."""
        # Weights and scales belong together: a policy is wrong under other scales.
        policy = {f"policy.{name}": tensor for name, tensor in self.policy.state_dict().items()}
        parts = policy | self.normalizers.state_dict()
        tensors = {name: tensor.cpu().contiguous() for name, tensor in parts.items()}
        content = save(tensors)
        # All that is needed to build the policy without its run.
        card = {
            "format_version": FORMAT_VERSION,
            "iteration": self.iteration,
            "specs": self.specs,
            "train": self.train.model_dump(mode="json"),
            "sha256": durable.sha256_of(content),
        }
        with durable.new_directory(target) as folder:
            durable.write_synced(folder / WEIGHTS_FILE, content)
            durable.write_synced(folder / CARD_FILE, durable.with_checksum(card))

    @classmethod
    def load(cls, path: Path, device: torch.device | str = "cpu") -> Self:
        """Load a directory that ``save`` wrote, verified; SimicError naming the file that is missing or damaged."""
        # Both files are read before either is believed.
        card_file = path / CARD_FILE
        try:
            card_content = safe_read.read_file(card_file, MOST_CARD_BYTES, RESTORED)
            content = safe_read.read_file(path / WEIGHTS_FILE, machine_bytes() // COPIES, RESTORED)
            card = json.loads(card_content)
            if card["format_version"] != FORMAT_VERSION:
                raise SimicError(
                    f"{path}: format version {card['format_version']}: must be {FORMAT_VERSION}; run simic train again"
                )
            # Now that the format is known, every byte is verified before a tensor is read.
            card = durable.checked(card_content)
            if card["sha256"] != durable.sha256_of(content):
                raise SimicError(
                    f"{path}: damaged: {WEIGHTS_FILE} does not have the sha256 in {CARD_FILE}; {RESTORED}"
                )
            train = params.Train.model_validate_json(json.dumps(card["train"]))
            tensors = load(content)
            return cls._build(
                card["specs"],
                train,
                card["iteration"],
                part_of(tensors, "policy."),
                tensors,
                device,
            )
        # Sizes beyond all numbers are a RuntimeError of torch.
        except (
            *(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
            SafetensorError,
        ):
            raise SimicError(
                f"{card_file}: damaged: not a policy that simic wrote; {RESTORED}"
            ) from None


class LearnedActor:
    """A policy with frozen observation scales; sampled draws are a hash of (rng_seed, iteration, env, step)."""

    def __init__(self, policy: ActorCritic, normalizers: Normalizers, greedy: bool) -> None:
        self.policy = policy
        self.normalizers = normalizers
        self.greedy = greedy

    def start(self, episode: Episode) -> None:
        self.episode = episode
        self.probabilities: list[Tensor] = []  # of the decision of every step, [E]
        self.memory = self.policy.initial_state(len(episode.env_ids))

    def act(self, situation: Situation) -> Action:
        """Choose the likeliest action, or draw one from the policy's distribution."""
        # The memory needs no reset: all hosts begin and end together.
        observation = self.normalizers.see(situation.observation)
        noise = (
            None
            if self.greedy
            else self.episode.noise(situation.step, len(self.policy.action_spec.heads))
        )
        decision = self.policy.act(observation, self.memory, noise, situation.alive)
        self.memory = decision.state
        self.probabilities.append(decision.joint.exp())
        return to_action(decision.actions)


def describe_specs(action_spec: ActionSpec, observation_spec: ObservationSpec) -> dict[str, Any]:
    """Describe both specs in plain JSON."""
    return json.loads(
        json.dumps({"action": asdict(action_spec), "observation": asdict(observation_spec)})
    )


def parse_specs(specs: dict[str, Any]) -> tuple[ActionSpec, ObservationSpec]:
    """Read the specs that ``describe_specs`` described; SimicError for anything else."""
    try:
        action = TypeAdapter(ActionSpec).validate_python(specs["action"])
        return action, TypeAdapter(ObservationSpec).validate_python(specs["observation"])
    except (ValidationError, KeyError) as error:
        raise SimicError(
            f"policy specs are damaged: {' '.join(str(error).split())[:200]}"
        ) from None
