"""The chain of seals: whole as it was made; every file, param or line of code that changes afterwards breaks it."""

import json
import shutil
from pathlib import Path

import pytest

from simic import durable, params, seals
from simic.errors import SimicError

ROOT = Path(__file__).parents[1]
OUTPUTS = (
    *("data/prepared/trainval.safetensors", "data/prepared/meta.json", "reports/headroom.json"),
    *(
        "checkpoints/best/state.safetensors",
        "checkpoints/latest/state.safetensors",
        "models/policy/weights.safetensors",
    ),
    *(
        f"telemetry/{name}"
        for name in ("steps.parquet", "curves.csv", "metrics.json", "timing.jsonl", "run.json")
    ),
    *(
        "reports/grown/weights.safetensors",
        "reports/evaluation.json",
        "reports/metrics.json",
        "reports/report.md",
    ),
)
PROVEN = [stage for stage in seals.STAGES if stage != "audit"]  # the audit does not look at itself


def tree(*overrides):
    return params.load(ROOT / "params.yaml", list(overrides))


def made(root, when="noon"):
    """A workspace as the four stages leave it, with a few bytes for each file; those apart say when."""
    for stage, sealed in seals.STAGES.items():
        identity = seals.identify(root, stage, tree())
        for name in OUTPUTS:
            if any(name == place or name.startswith(f"{place}/") for place in sealed.writes):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(name + when * (Path(name).name in seals.APART))
        seals.write(root, identity)
    return root


@pytest.fixture
def root(tmp_path):
    return made(tmp_path / "run")


def test_a_chain_that_nobody_touched_is_whole_and_one_that_has_not_run_too(root, tmp_path):
    assert seals.broken(root, tree()) == ([], PROVEN)
    assert all(seals.holds(root, stage, tree()) for stage in seals.STAGES)
    assert seals.broken(tmp_path / "nothing", tree()) == ([], [])


def test_equal_runs_have_seals_that_differ_by_wall_times_and_starts_alone(root, tmp_path):
    again = made(tmp_path / "again", when="midnight")
    for stage in seals.STAGES:
        first, second = seals.read(root, stage), seals.read(again, stage)
        reads = {"reads": {}} if stage == "audit" else {}  # it reads the seals
        assert (first != second) is (stage in ("train", "audit"))
        assert first.model_copy(update={"apart": {}, **reads}) == second.model_copy(
            update={"apart": {}, **reads}
        )


CHANGES = {
    "changed": lambda path: path.write_text("edited"),
    "removed": Path.unlink,
    "renamed": lambda path: path.rename(path.with_name("other")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_output_is_bound(change, root, tmp_path):
    for name in OUTPUTS:
        copy = shutil.copytree(root, tmp_path / name.replace("/", "-"))
        CHANGES[change](copy / name)
        assert seals.broken(copy, tree())[0] or name == "reports/report.md", name
        assert not all(seals.holds(copy, stage, tree()) for stage in seals.STAGES), name


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("train.ppo.gamma=0.9", {"train", "evaluate"}),
        ("train.lifecycle.max_seeds=2", {"headroom", "train", "evaluate"}),
        ("rng_seed=2", set(PROVEN)),
        ("evaluate.checkpoint=latest", {"evaluate"}),
        ("runtime.threads=2", set()),
        ("audit.fail_on=high", set()),
    ],
)
def test_params_changed_afterwards_are_found_where_they_matter(override, stages, root):
    problems, _ = seals.broken(root, tree(override))
    assert {problem.partition(":")[0] for problem in problems} == stages
    stale = {stage for stage in seals.STAGES if not seals.holds(root, stage, tree(override))}
    audited = set() if override == "runtime.threads=2" else {"audit"}
    assert stale == stages | audited


def test_code_changed_afterwards_is_found(root, monkeypatch):
    real = seals.code_hashes
    changes = {"envs": "other"}
    monkeypatch.setattr(
        seals, "code_hashes", lambda places: real(places) | (changes if "envs" in places else {})
    )
    changed = [
        f"{stage}: code envs has changed since" for stage in ("headroom", "train", "evaluate")
    ]
    assert seals.broken(root, tree())[0] == changed


def test_templates_and_published_rules_count_as_code_and_what_was_compiled_does_not(
    tmp_path, monkeypatch
):
    """DVC watches them too: what it would repeat is out of date here as well."""
    assert {"audit"} <= set(seals.STAGES["audit"].code)
    assert "published/rules" in seals.STAGES["headroom"].code
    monkeypatch.setattr(seals, "PACKAGE", tmp_path)
    (tmp_path / "audit" / "__pycache__").mkdir(parents=True)
    (tmp_path / "audit" / "report.html").write_text("old")
    before = seals.code_hashes(("audit",))
    (tmp_path / "audit" / "__pycache__" / "report.pyc").write_text("x")
    (tmp_path / "audit" / "__pycache__" / "numba").mkdir()
    (tmp_path / "audit" / "__pycache__" / "numba" / "report.nbi").write_text("x")
    assert seals.code_hashes(("audit",)) == before
    (tmp_path / "audit" / "report.html").write_text("new")
    assert seals.code_hashes(("audit",)) != before


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 1}'])
def test_a_seal_that_is_damaged_or_missing_is_found(damage, root):
    seals.path_of(root, "train").write_text(damage)
    assert (
        "train: its seal is not readable" in seals.broken(root, tree())[0][0]
        and seals.read(root, "train") is None
    )
    seals.path_of(root, "train").unlink()
    problems, looked = seals.broken(root, tree())
    assert problems == ["train: has outputs and no seal"] and "train" not in looked


def test_an_evaluation_of_another_training_is_found_though_both_seals_hold(root):
    """Trained anew after the evaluation, as when a stage is run by hand."""
    (root / "checkpoints" / "best" / "state.safetensors").write_text("another training")
    seals.write(root, seals.identify(root, "train", tree()))
    problems, _ = seals.broken(root, tree())
    assert "evaluate: read another checkpoints than train made" in problems


@pytest.mark.parametrize("place", ["reports/headroom.json", "models", "reports/evaluation.json"])
def test_what_a_stage_reads_is_held_against_the_seal_of_who_made_it(place, root):
    seals.refuse_changed(root, place)
    changed = root / next(name for name in OUTPUTS if name.startswith(place))
    changed.write_text("other")
    with pytest.raises(
        SimicError, match=rf"{place}: is not what \w+ made; dvc checkout .* or run simic \w+ again"
    ):
        seals.refuse_changed(root, place)
    stage = next(stage for stage, sealed in seals.STAGES.items() if place in sealed.writes)
    seals.path_of(root, stage).write_text("{")
    with pytest.raises(SimicError, match=rf"run simic {stage} again"):
        seals.refuse_changed(root, place)
    seals.path_of(root, stage).unlink()  # a policy in a folder of its own
    seals.refuse_changed(root, place)


def test_the_users_own_file_is_an_input_and_where_it_is_gone_what_was_made_of_it_counts(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("SIMIC_DATA_DIR", str(tmp_path))
    settings = tree("prepare.task=text", "prepare.source=mine.txt")
    file, meta = tmp_path / "mine.txt", tmp_path / "data" / "prepared" / "meta.json"
    file.write_text("one")
    first = seals.identify(tmp_path, "prepare", settings)
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"source_sha256": durable.sha256(file)}))
    file.write_text("two")
    assert seals.identify(tmp_path, "prepare", settings).changes(first) == {"input mine.txt": ""}
    file.unlink()
    assert seals.identify(tmp_path, "prepare", settings) == first


def test_changes_name_params_with_both_values_inputs_and_code(root, monkeypatch):
    before = seals.identify(root, "train", tree())
    (root / "data" / "prepared" / "meta.json").write_text("other")
    monkeypatch.setattr(seals, "code_hashes", lambda places: {**before.code, "envs": "0"})
    now = seals.identify(root, "train", tree("train.ppo.gamma=0.9"))
    assert now.sha256 != before.sha256
    assert before.changes(now) == {
        "train.ppo.gamma": "1.0 → 0.9",
        "input data/prepared": "",
        "code envs": "",
    }
