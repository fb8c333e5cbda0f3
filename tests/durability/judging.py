"""What becomes of a damage: whoever reads the files next finds it and says so, or it does no harm."""

import shutil
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from pydantic import BaseModel
from torch import nn

from simic import durable, seals
from simic.agent import export
from simic.audit.audit import examine
from simic.audit.findings import Verdict
from simic.data.batches import load_held_out, load_split, read_meta
from simic.errors import SimicError
from simic.evaluation import explain, result, scoring
from simic.growth.grown_network import load_grown
from simic.params import Params
from simic.pipeline import run_summary, stages, training_work
from simic.pipeline.grow import _find_policy
from simic.pipeline.paths import Workspace
from simic.telemetry import starts
from simic.training import assemble, checkpoint, session
from simic.training.learned import Learned
from tests.durability.damage import Place

Word = Literal["found", "harmless", "silent", "unfinishable", "traceback"]
GOOD = 1  # iterations that no life of these trainings does again
UNREAD = frozenset(
    {"figures", "report.html"}
)  # of a finished run: left out of copies, which are many
CPU = torch.device("cpu")


class Judgement(NamedTuple):
    """Of one reader."""

    word: Word
    detail: str = ""


def digest(value: object) -> str:
    """Equal for equal values, whatever they are made of."""
    return durable.sha256_of("\n".join(leaves(value)).encode())


def leaves(value: Any) -> list[str]:
    if isinstance(value, nn.Module):
        return leaves(value.state_dict())
    if isinstance(value, torch.Tensor):
        return leaves(value.numpy())
    if isinstance(value, np.ndarray):
        content = (
            repr(value.tolist()) if value.dtype == object else durable.sha256_of(value.tobytes())
        )
        return [f"{value.dtype}{value.shape}{content}"]
    if isinstance(value, BaseModel):
        return [value.model_dump_json()]
    if is_dataclass(value):
        return [leaf for field in fields(value) for leaf in leaves(getattr(value, field.name))]
    if isinstance(value, Mapping):
        return [leaf for key in sorted(value) for leaf in (str(key), *leaves(value[key]))]
    if isinstance(value, list | tuple):
        return [leaf for element in value for leaf in leaves(element)]
    return [repr(value)]


# --- unfinished training ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """What a training left, and what it said."""

    state: str
    files: dict[str, str]
    findings: frozenset[tuple[str, str]]


def ended(workspace: Workspace, findings: set[tuple[str, str]]) -> Ended:
    """From what is published."""
    places = (workspace.checkpoints, workspace.models, workspace.telemetry)
    paths = [path for place in places for path in sorted(place.rglob("*")) if path.is_file()]
    files = {path.relative_to(workspace.root).as_posix(): durable.sha256(path) for path in paths}
    begun = starts.read(workspace.telemetry / starts.RUN_FILE)
    files["telemetry/run.json"] = digest(begun[:-1])
    files["telemetry/timing.jsonl"] = digest(
        (workspace.telemetry / "timing.jsonl").read_text().splitlines()[:GOOD]
    )
    for name in ("best", "latest"):
        files[f"checkpoints/{name}/manifest.json"] = digest(unlogged(workspace.checkpoints / name))
    findings |= {(finding.check, finding.message) for finding in begun[-1].findings}
    return Ended(files["checkpoints/latest/state.safetensors"], files, frozenset(findings))


def unlogged(path: Path) -> dict[str, Any]:
    """A manifest without how far the log reaches: what is found at a resume stands in another file of it."""
    fields = checkpoint.read_manifest(path).model_dump()
    return {name: value for name, value in fields.items() if not name.startswith("telemetry_")}


class PartialRollout(NamedTuple):
    """A training that was stopped, went on as one of more iterations by other code, and was stopped again before it
    had done one; and what is published of it after so many iterations.
    """

    workspace: Workspace
    place: str
    params: Params
    published: dict[int, Ended]


class Opener:
    """Opens a run as training does, and publishes it as it is: quick, since environment and learner are made once. That
    training goes on bit for bit from an equal state is for other tests.
    """

    def __init__(self, tree: Params, prepared: Path) -> None:
        self.tree = tree
        self.state = assemble.assemble(tree, prepared, CPU)
        self.fresh = self.state.tensors(), self.state.scalars()

    def published(self, workspace: Workspace, fresh: bool = False) -> tuple[int, Ended]:
        """After how many iterations, and what."""
        tree, findings = self.tree, set[tuple[str, str]]()
        messages = "; ".join(training_work.begin(tree, workspace, fresh))
        self.state.load(*self.fresh)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "assemble", lambda *arguments: self.state)
            patch.setattr(type(self.state.task.env), "close", lambda env: None)
            work = workspace.work(stages.fingerprint(tree, workspace))
            with session.open_session(tree, work, workspace.prepared, fresh) as opened:
                for finding in opened.findings:
                    opened.recorder.find(finding)
                    findings.add((finding.check, finding.message))
                iterations, best = self.state.counters.iteration, self.state.counters.best_iteration
                if iterations:
                    patch.setattr(export, "export_policy", lambda *arguments: None)
                    stages._publish(opened, workspace, best or iterations, iterations)
        if not iterations:
            assert messages or fresh, "it begins anew without a word"
            return 0, Ended("", {}, frozenset({("begin", messages or "as asked")}))
        return iterations, ended(workspace, findings)


def judge_opened(project: PartialRollout, workspace: Workspace, opener: Opener) -> Judgement:
    """Of a damaged work directory that training would go on with; where ``--fresh`` is advised it is given."""
    messages = list[str]()
    for _ in range(3):
        try:
            iterations, outcome = opener.published(workspace, "--fresh" in " ".join(messages))
        except SimicError as refusal:
            messages.append(one_line(refusal))
            if not ("--fresh" in messages[-1] or "run the same command again" in messages[-1]):
                return Judgement("unfinishable", f"no remedy: {messages[-1]}")
            continue
        except Exception:  # noqa: BLE001
            return Judgement("traceback", traceback.format_exc())
        clean = project.published[iterations] if iterations else Ended("", {}, frozenset())
        messages += [f"{check}: {message}" for check, message in outcome.findings - clean.findings]
        if outcome.state != clean.state:
            return Judgement("silent", f"another result, said: {messages}")
        if messages:
            return Judgement("found", " | ".join(messages))
        differing = [
            name for name, value in clean.files.items() if outcome.files.get(name) != value
        ]
        missing = sorted(clean.findings - outcome.findings)
        return (
            Judgement("silent", f"differ: {differing}; {missing}")
            if differing or missing
            else Judgement("harmless")
        )
    return Judgement("unfinishable", " | ".join(messages))


def one_line(error: SimicError) -> str:
    assert "\n" not in str(error), str(error)
    return str(error)


# --- what is published, and prepared data -----------------------------------------------------------------------------


class Opened(Exception):
    """All that an evaluation reads was read."""


def evaluate(tree: Params, workspace: Workspace) -> Any:
    """What `simic evaluate` reads before it plays."""
    read: list[Any] = []

    def kept(function: Callable[..., Any]) -> Callable[..., Any]:
        def do(*arguments: Any) -> Any:
            read.append(function(*arguments))
            return read[-1]

        return do

    def stop(*arguments: Any) -> None:
        raise Opened

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result, "read_headroom", kept(result.read_headroom))
        patch.setattr(checkpoint, "read_published", kept(checkpoint.read_published))
        patch.setattr(scoring.EvaluationSetup, "open", stop)
        with pytest.raises(Opened):
            stages.evaluate(tree, workspace)
    floors, checkpoint_read = read
    return (
        floors,
        checkpoint_read.tensors,
        checkpoint_read.manifest,
        load_held_out(workspace.prepared),
    )


def known(learned: Learned) -> Any:
    return learned.policy, learned.normalizers.state_dict(), learned.train, learned.iteration


def audit(tree: Params, workspace: Workspace) -> Verdict:
    with seals.explain_damage(workspace.root, tree):
        return examine(stages.recorded(tree, workspace), "run")


def explained(tree: Params, workspace: Workspace) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explain, "explain", lambda *arguments: arguments)
        value_read: Any = stages.explain(tree, workspace, "0", 1)
    evaluation, checkpoint, prepared, *_ = value_read
    return known(Learned.of(checkpoint)), evaluation, load_held_out(prepared)


def grow(tree: Params, workspace: Workspace) -> Any:
    """Whom `simic grow` lets play."""
    chosen: Any = _find_policy("learned", None, tree, workspace, read_meta(workspace.prepared), CPU)
    return chosen.name, known(chosen.learned)


def data(tree: Params, workspace: Workspace) -> Any:
    place = workspace.prepared
    return (
        read_meta(place),
        load_split(place, "train"),
        load_split(place, "val"),
        load_held_out(place),
    )


PUBLISHED = ("data/prepared", "checkpoints", "models", "telemetry", "reports/grown")  # folders
SEALS = tuple(
    f"reports/seals/{stage}.json" for stage in ("prepare", "headroom", "train", "evaluate")
)
OF_EVALUATION = ("reports/evaluation.json", SEALS[3])
# By name: what reads, and what it reads.
READERS: dict[str, tuple[Callable[[Params, Workspace], Any], tuple[str, ...]]] = {
    "evaluate": (
        evaluate,
        ("data/prepared", "checkpoints", "reports/headroom.json", SEALS[1], SEALS[2]),
    ),
    "audit": (audit, ("data/prepared", "checkpoints", "models", "telemetry", "reports")),
    "told": (lambda tree, workspace: run_summary.of(workspace).lines, ("reports/findings.json",)),
    "explain": (explained, ("data/prepared", "checkpoints", *OF_EVALUATION)),
    "grow": (grow, ("data/prepared", "models", "reports/headroom.json", SEALS[1], SEALS[2])),
    "load_grown": (lambda tree, workspace: load_grown(workspace.grown), ("reports/grown",)),
    "load": (
        lambda tree, workspace: known(Learned.load(workspace.models / "policy")),
        ("models/policy",),
    ),
    "data": (data, ("data/prepared",)),
}


class Finished(NamedTuple):
    """All stages, and what every reader makes of it."""

    workspace: Workspace
    params: Params
    read: dict[str, str]

    @classmethod
    def of(cls, workspace: Workspace, params: Params) -> "Finished":
        return cls(
            workspace,
            params,
            {name: digest(read(params, workspace)) for name, (read, _) in READERS.items()},
        )


# What a message says helps, and what that brings back: each makes the same bytes again, which other tests hold.
REMEDIES: dict[str, tuple[str, ...]] = {
    "run simic prepare": ("data/prepared", "reports/seals/prepare.json"),
    "run simic headroom": ("reports/headroom.json", "reports/seals/headroom.json"),
    "run simic train": ("checkpoints", "models", "telemetry", "reports/seals/train.json"),
    "run simic evaluate": ("reports/grown", "reports/metrics.json", *OF_EVALUATION),
    "run simic audit": ("reports/findings.json",),
    **{f"dvc checkout {name}": (name,) for name in PUBLISHED},
}


def judge_reader(name: str, project: Finished, workspace: Workspace) -> Judgement:
    """Of damaged files."""
    reader, places = READERS[name]
    if seen(workspace, places) == seen(project.workspace, places):
        return Judgement("harmless")  # to it nothing has happened
    messages = list[str]()
    for _ in range(4):
        try:
            value_read = reader(project.params, workspace)
        except SimicError as refusal:
            messages.append(one_line(refusal))
            remedies = [places for words, places in REMEDIES.items() if words in messages[-1]]
            if not remedies:
                return Judgement("unfinishable", f"no remedy: {messages[-1]}")
            for place in remedies[0]:
                restore(workspace.root / place, project.workspace.root / place)
            continue
        except Exception:  # noqa: BLE001
            return Judgement("traceback", traceback.format_exc())
        if messages:
            return Judgement("found", " | ".join(messages))
        if digest(value_read) == project.read[name]:
            return Judgement("harmless")
        if isinstance(value_read, Verdict) and "X6" in [
            finding.check for finding in value_read.findings
        ]:
            return Judgement("found", "X6")
        return Judgement("silent", str(value_read)[:300])
    return Judgement("unfinishable", " | ".join(messages))


def seen(workspace: Workspace, places: tuple[str, ...]) -> list[str]:
    """Hashes, wall times and all."""
    area = Place(workspace.root, places)
    return [
        f"{area.named(path)} {durable.sha256(path) if path.is_file() else ''}"
        for path in area.entries()
        if UNREAD.isdisjoint(path.relative_to(workspace.root).parts)
    ]


def restore(path: Path, source: Path) -> None:
    """From the undamaged run."""
    for parent in (*reversed(path.parents), path):
        if parent.is_file():
            parent.unlink()
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, path) if source.is_dir() else shutil.copyfile(source, path)
