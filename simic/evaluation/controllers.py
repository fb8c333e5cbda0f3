"""Choose the controller to grow with: the project's own, or one of those that come with simic, by suite."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from pydantic import ValidationError

from simic.data.batches import Meta
from simic.errors import SimicError
from simic.evaluation.endpoints import PATIENT, TUNED
from simic.evaluation.policies import refuse_other_host
from simic.evaluation.result import Frozen
from simic.evaluation.rules import published_for
from simic.growth.networks.hosts import build_host
from simic.params import Host
from simic.training.learned import CARD_FILE, RESTORED, Learned

# A host for tables takes no more: its seeds compare all pairs of columns.
MOST_COLUMNS = 256
# A folder for each suite.
PUBLISHED = Path(__file__).parents[1] / "published"


class Publication(Frozen):
    """The key ``published`` in policy.json of a published controller."""

    suite: str
    # Shape of a sample of the tasks it was trained on.
    sample_shape: tuple[int, ...]


@dataclass(frozen=True)
class Controller:
    """Hold a trained policy, and its name for readers."""

    name: str
    learned: Learned
    published: Publication | None = None

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Self:
        """Load a directory with a policy; SimicError naming the file that is missing or damaged."""
        learned = Learned.load(folder, device)
        publication = json.loads((folder / CARD_FILE).read_bytes()).get("published")
        try:
            published = None if publication is None else Publication.model_validate(publication)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise SimicError(f"{folder / CARD_FILE}: published: {reason}; {RESTORED}") from None
        name = (
            f"the published controller of suite {published.suite}"
            if published
            else f"the controller in {folder}"
        )
        return cls(f"{name}, trained for {learned.iteration} iterations", learned, published)

    @classmethod
    def own(cls, models: Path, device: torch.device) -> Self:
        """Load the project's own."""
        learned = Learned.load(models / "policy", device)
        return cls(
            f"the project's own controller, trained for {learned.iteration} iterations", learned
        )

    def refusal(self, host: Host | None, meta: Meta) -> str:
        """Say why it cannot grow that host (default: the one it was trained on) on those data; empty where it can."""
        if self.published and _form(self.published.sample_shape) != _form(meta.shape):
            return f"trained on {_form(self.published.sample_shape)}, these are {_form(meta.shape)}"
        if (host or self.learned.train.host).family == "tables" and meta.shape[-1] > MOST_COLUMNS:
            return f"compares each of at most {MOST_COLUMNS} columns with each, these are {meta.shape[-1]}"
        try:
            refuse_other_host(
                self.learned, build_host(host or self.learned.train.host, meta.shape, meta.classes)
            )
        except SimicError as error:
            return str(error)
        return ""


@dataclass(frozen=True)
class Rule:
    """A baseline by its name, and why it grows in place of a controller, if it was not asked for."""

    name: str
    instead: str = ""

    def __str__(self) -> str:
        return f"the policy {self.name}" + (
            f", since no controller fits: {self.instead}" if self.instead else ""
        )


def choose(
    own: Controller | None,
    host: Host | None,
    usual: Host,
    meta: Meta,
    device: torch.device,
) -> Controller | Rule:
    """Choose the project's own controller where it fits, else the published one that does, else a hand rule.

    Args:
        own: the project's controller, if it has one.
        host: that is to grow; None: the one that a controller was trained on.
        usual: the host that a rule grows in place of None; the tuned rule needs one that it is tuned for, and vectors.
        meta: of the data.
        device: where to compute.

    Returns:
        The controller, or a rule that tells why no controller fits.
    """
    # The project's own comes first: it was trained on what this project is about.
    published = [
        Controller.load(path.parent, device) for path in sorted(PUBLISHED.glob(f"*/{CARD_FILE}"))
    ]
    candidates = [own, *published] if own else published
    refusals = [controller.refusal(host, meta) for controller in candidates]
    if "" in refusals:
        return candidates[refusals.index("")]
    # Whoever reads the result learns why no controller decided.
    reasons = [
        f"{controller.name}: {refusal}"
        for controller, refusal in zip(candidates, refusals, strict=True)
    ]
    # The tuned rule reads how columns align with the classes, so only vectors have it.
    narrow = _form(meta.shape) == "vectors" and 1 < meta.shape[-1] <= MOST_COLUMNS
    tuned = narrow and published_for((host or usual).family)
    return Rule(
        TUNED if tuned else PATIENT,
        "; ".join(reasons) or "there is none in models/policy, and none is published",
    )


def _form(shape: tuple[int, ...]) -> str:
    return "tokens" if len(shape) == 1 else "vectors" if shape[:-1] == (1, 1) else "images"
