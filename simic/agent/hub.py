"""The files that make a folder with an agent a model repository of Hugging Face Hub; nothing is sent there."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from simic.errors import as_markdown

AGENT_FILE = "agent.safetensors"
CONFIG_FILE = "config.json"
CARD_FILE = "README.md"
HUB_FILES = (AGENT_FILE, CONFIG_FILE, CARD_FILE)
TASK = "reinforcement-learning"  # as the Hub calls it


def hub_files(
    config: Mapping[str, Any], name: str, weights: int, env_steps: int, returns: Sequence[float]
) -> dict[str, bytes]:
    """Write the settings and the model card; its metadata are those of Stable-Baselines3's cards.

    Args:
        config: All that the agent's constructor takes, as in its saved file.
        name: What the environment is called.
        weights: How many the policy has.
        env_steps: Of training.
        returns: Of greedy episodes, finite; none: nothing was evaluated.
    """
    # The Hub sorts agents by the metric and its environment.
    metadata: dict[str, Any] = {"library_name": "simic", "tags": [TASK, "simic", name]}
    result = "It was not evaluated."
    if len(returns):
        score = f"{np.mean(returns):.2f} +/- {np.std(returns):.2f}"
        metric = {"type": "mean_reward", "name": "mean_reward", "value": score, "verified": False}
        measured = {
            "task": {"type": TASK, "name": TASK},
            "dataset": {"type": name, "name": name},
            "metrics": [metric],
        }
        metadata["model-index"] = [{"name": "simic PPO", "results": [measured]}]
        result = f"Mean return of {len(returns)} greedy episodes: {score} (standard deviation)."
    # An environment without an id is the reader's to make.
    make = "" if config["env"] is not None else ", make_env"
    make += ", encoders=encoders" * bool(config["encoders"])
    # Between two lines of dashes; a text from outside is quoted there, and escaped below.
    front = io.StringIO()
    YAML().dump(metadata, front)
    core = config["policy"]["core"]
    card = f"""---
{front.getvalue()}---
# An agent for {as_markdown(name)}

A masked PPO policy of {weights:,} parameters, core {core}, trained for {env_steps:,} environment steps by simic.
{result}

## Load
```python
from huggingface_hub import snapshot_download
from simic.agent import Agent

agent = Agent.load(snapshot_download("USER/NAME"){make})
action, state = agent.predict(observation)
```

With torch alone: `torch.export.load("policy.pt2")`; `policy.json` says what goes in and comes out.

## Upload
    hf upload USER/NAME .
"""
    return {
        CARD_FILE: card.encode(),
        CONFIG_FILE: (json.dumps(config, indent=2) + "\n").encode(),
    }
