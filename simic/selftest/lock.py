"""dvc.lock as DVC writes it, without DVC, which would take longer than the whole run: params and outputs of stages."""

import hashlib
import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from simic.params_file import read_tree
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
        "outs": [_entry(workspace.root, name) for name in OUTPUTS[stage] if (workspace.root / name).exists()],
    }
    YAML().dump(found, path)


def _entry(root: Path, name: str) -> dict[str, Any]:
    """Of a file its md5 and size; of a folder the md5 of the list of those in it, with their number."""
    path = root / name
    if path.is_file():
        return {"path": name, "hash": "md5", "md5": _md5(path.read_bytes()), "size": path.stat().st_size}
    files = sorted(each for each in path.rglob("*") if each.is_file())
    listed = [{"md5": _md5(each.read_bytes()), "relpath": each.relative_to(path).as_posix()} for each in files]
    listed.sort(key=lambda each: each["relpath"])
    size = sum(each.stat().st_size for each in files)
    md5 = _md5(json.dumps(listed, sort_keys=True).encode()) + ".dir"
    return {"path": name, "hash": "md5", "md5": md5, "size": size, "nfiles": len(files)}


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
