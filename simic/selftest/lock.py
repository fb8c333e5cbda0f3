"""dvc.lock as DVC writes it, without DVC, which would take longer than the whole run: params and outputs of stages."""

from ruamel.yaml import YAML

from simic.params import read_tree
from simic.pipeline import dvc_record
from simic.pipeline.paths import Workspace

OUTPUTS = {
    "prepare": ("data/prepared",),
    "headroom": ("reports/headroom.json",),
    "train": ("checkpoints", "models", "telemetry"),
    "evaluate": ("reports/evaluation.json", "reports/grown", "reports/metrics.json"),
}
SECTIONS = {
    "prepare": ("rng_seed", "prepare"),
    "headroom": ("rng_seed", "headroom"),
    "train": ("rng_seed", "train"),
    "evaluate": ("rng_seed", "headroom", "train", "evaluate"),
}


def note(workspace: Workspace, stage: str) -> None:
    """Adds a stage that has just ended; one without outputs of its own leaves the file as it is."""
    if stage not in OUTPUTS:
        return
    path = workspace.root / "dvc.lock"
    found = read_tree(path) if path.exists() else {"schema": "2.0", "stages": {}}
    tree = read_tree(workspace.params)
    found["stages"][stage] = {
        "cmd": f"simic stage {stage}",
        "params": {"params.yaml": {name: tree[name] for name in SECTIONS[stage]}},
        "outs": [dvc_record.entry(workspace.root, name) for name in OUTPUTS[stage] if (workspace.root / name).exists()],
    }
    YAML().dump(found, path)
