"""Play CartPole by an exported file and its description alone, without simic.

agent.export("runs/cartpole/onnx", "onnx")
python examples/onnx_policy.py runs/cartpole/onnx/policy.onnx
"""

import json
import sys

import gymnasium
import numpy as np
import onnxruntime


def main(file: str) -> np.ndarray:
    """Play one episode; return its last observation."""
    session = onnxruntime.InferenceSession(file)
    page = json.loads(session.get_modelmeta().custom_metadata_map["policy.json"])
    # Memory is empty, and where there are masks (row["mask_HEAD"][0]) the environment says what is legal.
    row = {
        name: np.zeros((1, *tensor["shape"][1:]), tensor["dtype"])
        for name, tensor in page["inputs"].items()
    }
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=1)
    steps = 0
    ended = False
    while not ended:
        # Each part of an observation is found at leaf["path"], which is empty where there is one part.
        for leaf in page["observation"]:
            columns = slice(*leaf["columns"])
            row[leaf["input"]][0, columns] = np.ravel(observation) + leaf.get("add", 0)
        outputs = dict(zip(page["outputs"], session.run(None, row), strict=True))
        row |= {"h": outputs["next_h"], "c": outputs["next_c"]}
        observation, _, terminated, truncated, _ = env.step(int(outputs["actions"][0, 0]))
        ended = terminated or truncated
        steps += 1
    print(f"{steps} steps")
    return observation


if __name__ == "__main__":
    main(sys.argv[1])
