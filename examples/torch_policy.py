"""Play the lock of agent.py by an exported program and its description alone: torch, memory and a mask.

agent.export("runs/lock/torch")
python examples/torch_policy.py runs/lock/torch
"""

import json
import runpy
import sys
from pathlib import Path

import torch

Lock = runpy.run_path(str(Path(__file__).with_name("agent.py")))["Lock"]


def main(folder: str) -> list[list[int]]:
    """Play one episode; return its actions."""
    page = json.loads((Path(folder) / "policy.json").read_text())
    program = torch.export.load(Path(folder) / page["program"]).module()
    # In the order of the call. Memory, h and c, is zero where an episode starts.
    row = {
        name: torch.zeros(1, *tensor["shape"][1:], dtype=getattr(torch, tensor["dtype"]))
        for name, tensor in page["inputs"].items()
    }
    env = Lock()
    observation, _ = env.reset(seed=1)
    actions: list[list[int]] = []
    ended = False
    while not ended:
        # Each part of an observation is found at leaf["path"], which is empty where there is one part.
        for leaf in page["observation"]:
            values = torch.as_tensor(observation).flatten() + torch.tensor(leaf.get("add", 0))
            row[leaf["input"]][0, slice(*leaf["columns"])] = values
        # Heads that are masked have an input each; the program takes these as one tuple.
        for head, mask in env.action_masks().items():
            row[f"mask_{head}"][0] = torch.as_tensor(mask)
        features, categories, *masks, h, c = row.values()
        action, _, _, row["h"], row["c"] = program(features, categories, tuple(masks), h, c)
        actions.append(action[0].tolist())
        observation, reward, terminated, truncated, _ = env.step(action[0].numpy())
        ended = terminated or truncated
    print(f"{len(actions)} steps, last reward {reward}")
    return actions


if __name__ == "__main__":
    main(sys.argv[1])
