"""One environment at the border: its answers are checked and copied, and its word on legal actions is found."""

import inspect
import logging
import re
import reprlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from simic.agent.action_space import ActionLayout
from simic.agent.spaces import Layout, RowSpace, declared
from simic.errors import SimicError
from simic.transfer import as_array

# Where environments say what is legal, the first that there is: as a method, an attribute or an entry of the info.
MASK_NAMES = (
    "action_masks",
    "action_mask",
    "valid_action_mask",
    "valid_action_masks",
    "legal_action_mask",
    "legal_actions_mask",
    "get_action_mask",
    "get_action_masks",
)
# What may say it in another form, as a list of numbers.
_LIKE_MASKS = re.compile(
    r"^(get_)?masks?$|(action|legal|valid|avail|move).*mask|mask.*(action|legal|valid|move)"
    r"|(legal|valid|avail\w*|possible|allowed)_?(act|move)",
    re.IGNORECASE,
)
_STATISTICS = {"obs_rms", "return_rms", "ret_rms", "running_mean", "running_var", "running_std"}
_log = logging.getLogger(__name__)


def layers(env: gymnasium.Env) -> list[gymnasium.Env]:
    """List an environment's wrappers and itself, the outermost first."""
    return [env, *layers(env.env)] if isinstance(env, gymnasium.Wrapper) else [env]


def _offers(env: gymnasium.Env, name: str) -> bool:
    """Tell whether some layer has a mask of that name, which can be read without arguments."""
    for layer in layers(env):
        # Looked up without a call: a property may fail before the first reset.
        member = inspect.getattr_static(layer, name, None)
        if isinstance(member, property):
            return True
        value = getattr(layer, name, None)
        if callable(value):
            parameters = inspect.signature(value).parameters.values()
            return all(part.default is not part.empty or part.kind in (2, 4) for part in parameters)
        if isinstance(value, Mapping | list | tuple) or getattr(value, "ndim", 0):
            return True
    return False


def refuse_no_space(env: Any, *names: str) -> None:
    """Raise SimicError where an attribute of an environment that should be a space is none, or missing."""
    for name in names:
        space = getattr(env, name, None)
        if not isinstance(space, gymnasium.Space):
            kind = type(space).__name__
            raise SimicError(f"environment {env}: {name} is {kind}, must be a gymnasium.Space")


@cache
def _warn_once(text: str) -> None:
    # Once, not by every copy of an environment.
    _log.warning("%s", text)


class CheckedEnv(gymnasium.Wrapper):
    """Check what one environment answers and copy it: it may fill the same array again. Of infos the mask alone is
    read; their types may differ from environment to environment, so they stay inside.

    Raises:
        SimicError: It keeps statistics from episode to episode, which another copy would not have.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        refuse_no_space(env, "observation_space", "action_space")
        self._refuse_statistics()
        self.layout = Layout(env.observation_space)
        if not self.layout.is_box:
            spec = self.layout.spec
            self.observation_space = RowSpace(self.layout, spec.width, spec.dtype)
        # Rows of float64 hold indices and numbers alike.
        self.actions = ActionLayout(env.action_space)
        width = sum(leaf.size for leaf in self.actions.leaves)
        self.action_space = RowSpace(self.actions, width, "float64")
        # Known after the first reset, since some environments make their mask there.
        self.mask_source: str | None = None
        self._mask_name: str | None = None
        self._info: Mapping[str, Any] = {}
        self._has_begun = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        observation, info = self._answer(
            "reset()", self.env.reset(seed=seed, options=options), ("observation", "info")
        )
        self._info = info if isinstance(info, Mapping) else {}
        if not self._has_begun:
            self._has_begun = True
            self._find_mask()
        return self._observed(observation), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict]:
        """Take a step with a row of the action's layout."""
        parts = ("observation", "reward", "terminated", "truncated", "info")
        observation, reward, terminated, truncated, self._info = self._answer(
            "step()", self.env.step(self.actions.to_env(action)), parts
        )
        if self.mask_source is None and (name := self._mask_of_info()):
            raise SimicError(
                f"environment {self.env}: info[{name!r}] comes with step() and not with reset(): must come with both"
            )
        return (
            self._observed(observation),
            self._paid(reward),
            self._flag("terminated", terminated),
            self._flag("truncated", truncated),
            {},
        )

    def legal(self) -> Any:
        """Tell what is legal now, as the environment says it; None where everything is."""
        if self._mask_name is not None:
            mask = self.env.get_wrapper_attr(self._mask_name)
            return mask() if callable(mask) else mask
        name = self._mask_of_info()
        if self.mask_source and name is None:
            raise SimicError(
                f"environment {self.env}: {self.mask_source} is missing: must be there"
            )
        return None if name is None else self._info[name]

    def _find_mask(self) -> None:
        """Find where legal actions are said; log what may have been meant as such."""
        self._mask_name = next((name for name in MASK_NAMES if _offers(self.env, name)), None)
        if self._mask_name is not None:
            member = self.env.get_wrapper_attr(self._mask_name)
            self.mask_source = self._mask_name + "()" * callable(member)
        elif name := self._mask_of_info():
            self.mask_source = f"info[{name!r}]"
        else:
            self._log_likely_masks()

    def _mask_of_info(self) -> str | None:
        if not isinstance(self._info, Mapping) or not self._info:
            return None
        return next((name for name in MASK_NAMES if self._info.get(name) is not None), None)

    def _log_likely_masks(self) -> None:
        names = {name for layer in layers(self.env) for name in dir(layer) if name[0] != "_"}
        likely = sorted(filter(_LIKE_MASKS.search, names))
        likely += [f"info[{name!r}]" for name in self._info if _LIKE_MASKS.search(str(name))]
        # Numbers cannot be masked.
        if likely and any(not isinstance(leaf.space, Box) for leaf in self.actions.leaves):
            _warn_once(
                f"environment {self.env}: every action is taken for legal; if {', '.join(likely)} says which are,"
                " offer it as action_masks()"
            )

    def _refuse_statistics(self) -> None:
        """Refuse wrappers that learn a scale: a copy for evaluation would begin without it."""
        for layer in layers(self.env):
            learns = [
                name
                for name, value in vars(layer).items()
                if name in _STATISTICS or type(value).__name__.startswith("Running")
            ]
            # Of a wrapper whose statistics are frozen every copy has the same.
            if learns and getattr(layer, "update_running_mean", True):
                kind = type(layer).__name__
                ours = "rewards" if "Reward" in kind else "observations"
                raise SimicError(
                    f"{kind} keeps {learns[0]}, which a new copy for evaluation has not learned: leave it out;"
                    f" ppo.normalize_{ours} does the same, and is saved with the policy"
                )

    def _answer(self, method: str, answer: Any, parts: Sequence[str]) -> Any:
        if not isinstance(answer, tuple) or len(answer) != len(parts):
            count = (
                f"{len(answer)} values"
                if isinstance(answer, tuple)
                else f"one {type(answer).__name__}"
            )
            raise SimicError(
                f"environment {self.env}: {method} returns {count}: must be ({', '.join(parts)})"
            )
        return answer

    def _flag(self, name: str, flag: Any) -> bool:
        value = np.asarray(flag)
        # None and words would be taken for False and True.
        if value.size != 1 or value.dtype.kind not in "biuf":
            raise SimicError(
                f"environment {self.env}: {name} is {reprlib.repr(flag)}: must be True or False"
            )
        return bool(value)

    def _paid(self, reward: Any) -> float:
        value = np.asarray(reward)
        # An array of one number counts as one: many environments pay such.
        if value.size != 1 or value.dtype.kind not in "biuf":
            raise SimicError(
                f"environment {self.env} pays {reprlib.repr(reward)}: a reward must be one real number"
            )
        return float(value.reshape(()))

    def _observed(self, observation: Any) -> np.ndarray:
        """Copy what was observed, as an array of the declared type or a row of all leaves."""
        try:
            if not self.layout.is_box:
                return self.layout.row(observation)
            return declared(np.array(as_array(observation)), self.layout.space, "observation")
        except SimicError as error:
            raise SimicError(f"environment {self.env}: {error}") from None
