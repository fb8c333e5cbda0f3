"""A clean synthetic run, recorded and published like a real one, in which each test plants one defect."""

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from simic.agent.metrics import UpdateMetrics
from simic.audit.audit import checks
from simic.audit.derived import derived_evaluation, derived_headroom
from simic.audit.findings import ReplayResult
from simic.audit.provenance import Origin, Provenance
from simic.audit.record import RunRecord, Table
from simic.evaluation import endpoints
from simic.evaluation.evaluate import summary
from simic.evaluation.intervals import compare_with_all
from simic.evaluation.result import (
    Case,
    DecisionCase,
    Evaluation,
    Fixed,
    HeadroomReport,
    HostDescription,
    PerSeed,
    TaskRow,
    Timeline,
)
from simic.growth.life.vocabulary import Op, Stage
from simic.params import Params
from simic.telemetry import columns as tables
from simic.telemetry.columns import Columns, EventColumns
from simic.telemetry.publish import publish
from simic.telemetry.recorder import Iteration, Recorder
from simic.telemetry.rows import TimingRow, UpdateRow
from simic.training.machine import Machine
from tests import standard

ENVS, SLOTS, STEPS, ITERATIONS = 4, 2, 6, 24
NO_EVENTS = EventColumns({name: np.zeros(0, dtype=np.int64) for name in tables.EVENTS})
HEADS = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")


def params():
    """Return small params."""
    tree = standard.Params().model_dump()
    tree["train"] |= {"envs": ENVS, "episode_steps": STEPS, "iterations": ITERATIONS}
    tree["train"]["reward"]["pbrs_weight"] = 0.3
    return Params.model_validate(tree)


def noise(*counters):
    """Return a pseudo-random number in [-1, 1] as a function of counters."""
    return float(np.sin(12.9898 * (1 + np.dot(counters, (1, 7, 31)[: len(counters)]))))


def metrics(i):
    """Return the metrics of a healthy update, flattened as the trainer does it; 0 where nobody looks."""
    progress = i / ITERATIONS
    wobble = noise(i)
    flat = dict.fromkeys((name for name in UpdateMetrics.__annotations__ if "_by_" not in name), 0.0) | {
        "approx_kl": 0.008 + 0.002 * wobble, "update_kl": 0.007, "clip_fraction": 0.1 + 0.02 * wobble,
        "ratio_mean": 1.0, "ratio_min": 0.6, "ratio_max": 1.7, "first_ratio_deviation": 4e-7,
        "grad_norm": 0.4, "grad_norm_max": 0.9 + 0.1 * wobble, "grad_clipped_fraction": 0.4,
        "explained_variance": 0.1 + 0.7 * progress, "return_mean": 1.0, "return_std": 0.7, "steps": 16.0,
        "hidden_growth": 2.0, "hidden_saturated": 0.01,
    }  # fmt: skip
    for k, head in enumerate(HEADS):
        flat[f"entropy_by_head/{head}"] = 0.95 - (0.3 + 0.05 * k) * progress + 0.01 * noise(i, k)
        flat[f"samples_by_head/{head}"] = 400.0 - 20 * k
        flat[f"grad_norm_by_part/head_{head}"] = 0.1 + 0.01 * k
    return flat


# One seed grows in slot 0: sampled op of every step, and the stage after it.
SCRIPT = ((Op.WAIT, Stage.DORMANT), (Op.GERMINATE, Stage.GERMINATED), (Op.ADVANCE, Stage.TRAINING),
          (Op.ADVANCE, Stage.BLENDING), (Op.ADVANCE, Stage.HOLDING), (Op.FOSSILIZE, Stage.FOSSILIZED))  # fmt: skip
POTENTIAL = (
    0.0,
    0.0,
    1.3,
    2.3,
    3.8,
    5.8,
    0.0,
)  # before each step and after the last, which is terminal


def steps(iteration) -> Columns:
    """Return an iteration's steps, equal for all hosts; the shaping telescopes."""
    gamma, t = params().train.ppo.gamma, np.arange(STEPS)
    ops, stages = (
        np.array([int(value) for value in column]) for column in zip(*SCRIPT, strict=True)
    )
    potential = np.array(POTENTIAL)
    shaping, credit = 0.3 * (gamma * potential[1:] - potential[:-1]), 4.0 * (t == STEPS - 1)
    accuracy = (60.0 + 2 * t + 0.2 * iteration)[:, None] + np.arange(ENVS)
    columns = {
        name: np.zeros((STEPS, ENVS, SLOTS)[: column.axes], column.dtype)
        for name, column in tables.STEPS.items()
        if name != "components"
    }
    columns |= {
        f"components/{name}": np.zeros((STEPS, ENVS)) for name in ("shaping", "attribution")
    }
    # By step, or one number for all.
    values = {
        "op": ops, "effective_op": ops, "gate": np.where(ops == Op.WAIT, -1, 1), "gate_passed": ops != Op.WAIT,
        "log_prob": -1, "value": 0.5, "reward": shaping + credit, "components/shaping": shaping,
        "components/attribution": credit, "valid": True,
        **dict.fromkeys(("val_loss", "train_loss", "host_grad_norm"), 1),
        **dict.fromkeys(("params", "committed_params"), 500), **dict.fromkeys(("flops", "committed_flops"), 1000),
    }  # fmt: skip
    for name, value in values.items():
        columns[name][:] = np.reshape(value, (-1, 1))
    for name in ("live_accuracy", "committed_accuracy", "all_off_accuracy"):
        columns[name][:] = accuracy
    # The first slot has a seed, the second none.
    slots = {
        "stage": (stages, 0),
        "slot_blueprint": (np.where(t > 0, 0, -1), -1),
        "contribution": (3, np.nan),
    }
    for name, pair in slots.items():
        for slot, value in enumerate(pair):
            columns[name][..., slot] = np.reshape(value, (-1, 1))
    return columns


def episode(iteration) -> Columns:
    level, flags = 70 + 0.4 * iteration, np.ones(ENVS, dtype=np.int64)
    wobble = np.array([noise(iteration, e) for e in range(ENVS)])
    return {
        "env_id": np.arange(ENVS), "task": 0 * flags, "return": 5 + 0.05 * iteration + 0.01 * wobble,
        "length": STEPS * flags, "committed_accuracy": level + 0.3 * wobble, "score": level + 0.3 * wobble,
        "live_accuracy": level * np.ones(ENVS), "params": 500 * flags,
        "committed_params": 500 * flags, "committed_flops": 1000 * flags, "host_grad_norm": 1.0 * flags,
        "seed_grad_norm": 0.5 * flags, "germinated": flags, "fossilized": flags, "pruned": 0 * flags,
        "panicked": flags == 0,
    }  # fmt: skip


def recorded() -> list[Iteration]:
    """Return everything that a run of ITERATIONS records, but for the times."""
    iterations = []
    for i in range(ITERATIONS):
        update = UpdateRow(iteration=i, env_steps=(i + 1) * ENVS * STEPS, metrics=metrics(i), state_chain=f"{i:064x}",
                           validation_accuracy=float("nan"), best_iteration=None)  # fmt: skip
        validation = episode(i) if i % 8 == 7 else None
        iterations.append(Iteration(update, steps(i), episode(i), validation, NO_EVENTS))
    return iterations


def publish_run(work):
    """Publish the run and return the folder of its tables."""
    with Recorder(work) as log:
        for recorded_iteration in recorded():
            log.write(recorded_iteration)
            seconds = {
                "collect_seconds": 1.0,
                "update_seconds": 0.4,
                "validate_seconds": 0.0,
                "record_seconds": 0.0,
            }
            log.time(TimingRow(iteration=recorded_iteration.update.iteration, **seconds))
        publish(work, log.flush(), work / "published")
    return work / "published"


TASKS = tuple(
    TaskRow(name=f"kind-{k}/{n}", kind=f"kind-{k}", group="held_out" if k < 3 else "held_out_kinds", classes=4)
    for k in range(5) for n in range(2)
)  # fmt: skip
HOST = HostDescription(
    family="cnn", preset="impaired", slots=SLOTS, params=390, flops_per_sample=900
)
SCHEDULES = ("nothing", "norm at slot 0", "norm at slot 1", "attention at slot 1")
RULES = {"static": 70.0, "random_legal": 72.0, "patient": 78.0}
TRAINED = {"learned": 80.0, "blind": 75.0}


def reached(level, count):
    """Return accuracies that differ within and between tasks."""
    return tuple(level + noise(row) + 0.1 * (row % len(TASKS)) for row in range(count))


def per_seed(level, count):
    flat = (500,) * count
    costs = dict.fromkeys(
        ("params", "flops_per_sample", "training_flops", "validation_flops"), flat
    )
    grown = {
        "germinated": (1,) * count,
        "fossilized": (1,) * count,
        "pruned": (0,) * count,
        "rollbacks": (0,) * count,
    }
    accuracy = reached(level, count)
    return PerSeed(test_accuracy_pct=accuracy, val_accuracy_pct=accuracy, **costs, **grown)


def fixed(level, count):
    flat = (650,) * count
    return Fixed(
        test_accuracy_pct=reached(level, count),
        epochs=flat,
        params=flat,
        flops_per_sample=flat,
        training_flops=flat,
    )


def headroom(count=20, gain=8.0):
    """Return a headroom in which each kind has one schedule ``gain`` points above the others; schedule 1 is common."""
    rows = tuple(row % len(TASKS) for row in range(count))

    def table(shift):
        return tuple(
            tuple(
                70.0 + gain * (k == 1 + rows[row] // 2 % 3) + noise(rows[row], k, shift)
                for k in range(len(SCHEDULES))
            )
            for row in range(count)
        )

    cost, flat = 8, ((500.0,) * len(SCHEDULES),) * count
    bare = HeadroomReport(
        data_sha256="d" * 64, rng_seed=1, epochs=STEPS, host=HOST,
        max_seeds=1, param_budget=4.0, price=0.0, tasks=TASKS, rows=rows, schedules=SCHEDULES, common=1,
        common_cost=cost, search_scores=((70.0, 71.0, *(70.0,) * (len(SCHEDULES) - 2)),), choosing_val_pct=table(1),
        val_pct=table(2), test_pct=table(3), params=flat, flops_per_sample=flat, grid_cost=cost,
        policies={name: per_seed(level, count) for name, level in RULES.items()},
        floors={"linear classifier": fixed(90.0, count)}, standings={},
    )  # fmt: skip
    return bare.model_copy(update={"standings": endpoints.standings(bare, {})})


def timeline():
    stages = tuple((int(stage), 0) for _, stage in SCRIPT)
    decisions = tuple(
        DecisionCase(
            step=t,
            op=op.name,
            slot=0,
            blueprint="norm",
            refused_by_gate=None,
            reward=0.1,
            probability=0.9,
        )
        for t, (op, _) in enumerate(SCRIPT)
        if op is not Op.WAIT
    )
    accuracy = tuple(60.0 + t for t in range(STEPS))
    return Timeline(stages=stages, blueprints=tuple(("norm" if t else None, None) for t in range(STEPS)),
                    decisions=decisions, live_accuracy_pct=accuracy,
                    committed_accuracy_pct=(None, *accuracy[1:]), rollback_steps=())  # fmt: skip


def cases():
    """Return one host that won and one that lost."""
    return tuple(
        Case(row=row, parameters={"noise": 0.5}, score=75.0 + gain, common=75.0, oracle=SCHEDULES[2], oracle_score=85.0,
             timeline=timeline())
        for row, gain in enumerate((8.0, -6.0))
    )  # fmt: skip


def evaluation(eval_seeds=20, measured=None):
    measured = measured or headroom(eval_seeds)
    scores = {name: per_seed(level, eval_seeds) for name, level in (TRAINED | RULES).items()}
    policies = {name: summary(seeds, HOST.params, 1) for name, seeds in scores.items()}
    accuracies = {name: seeds.test_accuracy_pct for name, seeds in scores.items()}
    again = {
        "static_final, equal epochs": fixed(79.0, eval_seeds),
        "static_final, equal FLOPs": fixed(78.5, eval_seeds),
    }
    machine = Machine(python="3.11", libraries={}, cpu_capability="", threads=1, device="cpu", tf32=False,
                      backend="auto", group=20)  # fmt: skip
    return Evaluation(checkpoint="best", checkpoint_iteration=16, controller_trainings=1280, machine=machine,
                      data_sha256="d" * 64, rng_seed=1,
                      eval_seeds=eval_seeds, episode_steps=STEPS, test_samples=360,
                      tasks=measured.tasks, rows=measured.rows,
                      host=HOST, static_final=again, policies=policies,
                      comparisons=compare_with_all("learned", accuracies, 1),
                      standings=endpoints.standings(measured, scores | again),
                      cases=cases(), others={},
                      actions={"learned": (("1 0 1 0", "1 0 2 0", "4 0 0 0"), ("1 0 0 0", "0 0 0 0"))})  # fmt: skip


def provenance():
    origin = Origin(
        "run-1", datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC), "simic run", "0123456789abcdef"
    )
    recorded = params().model_dump(mode="json", exclude={"audit", "runtime"})
    return Provenance(params_sha256="a" * 64, data_sha256="d" * 64,
                      checkpoint_sha256={"best": "e" * 64, "latest": "f" * 64}, state_chain="b" * 64,
                      origin=origin, versions={"python": "3.11", "torch": "2.13"},
                      hardware={"device": "cpu", "threads": "1"}, damaged=(),
                      sealed=("prepare", "headroom", "train", "evaluate"),
                      code_sha256={"train": "9" * 64}, params=recorded)  # fmt: skip


def clean_run(published):
    """Read the defect-free run from its tables."""
    loaded = RunRecord.from_published(params(), published)
    tables = headroom()
    replays = tuple(
        ReplayResult(part=part, outcome="equal", detail="all bytes")
        for part in ("training", "evaluation")
    )
    # Returns are made up and do not follow from the steps: C1 is left without one of its columns.
    episodes = loaded.episodes.columns
    run = replace(
        loaded,
        episodes=Table({name: episodes[name] for name in episodes if name != "committed_flops"}),
        headroom=derived_headroom(tables),
        evaluation=evaluation(measured=tables),
        provenance=provenance(),
        replays=lambda: replays,
    )
    run = replace(run, evaluation=derived_evaluation(run))
    metrics = {
        "reports/metrics.json": endpoints.metrics(run.evaluation),
        "telemetry/metrics.json": json.loads((published / "metrics.json").read_bytes()),
    }
    return replace(run, metrics=metrics)


def with_bad_returns(run):
    """Take away the proof that the policy learned: signs of bad learning are findings then."""
    if run.evaluation is None:
        return run
    return replace(run, evaluation=run.evaluation.model_copy(update={"comparisons": ()}))


@dataclass(frozen=True)
class Plant:
    """Damage one thing in a copy of a record."""

    run: RunRecord

    def column(self, table, name, change):
        """Replace one column by ``change(copy of it)`` (in place when that returns None)."""
        old = getattr(self.run, table)
        values = old.column(name).copy()
        changed = change(values)
        columns = {**old.columns, name: values if changed is None else changed}
        return Plant(replace(self.run, **{table: type(old)(columns)}))

    def without(self, *needs):
        """Take inputs away."""
        run = self.run
        for need in needs:
            source, _, column = need.partition(".")
            if column:
                table = getattr(run, source)
                gone = {
                    name
                    for name in table.columns
                    if name == column or name.startswith(f"{column}.")
                }
                columns = {
                    name: values for name, values in table.columns.items() if name not in gone
                }
                run = replace(run, **{source: type(table)(columns)})
            else:
                run = replace(run, **{source: None})
        return run

    def attribute(self, **changes):
        return Plant(replace(self.run, **changes))


def with_needs_alone(run, needs):
    """Take away all that a check does not say it needs."""
    tables = ("updates", "steps", "episodes", "validations")
    columns = {
        table: {
            name: values
            for name, values in getattr(run, table).columns.items()
            if name in ("iteration", "step")
            or any(f"{table}.{name}".startswith((need, f"{need}.")) for need in needs)
        }
        for table in tables
    }
    absent = ("headroom", "evaluation", "gym_headroom", "gym", "provenance", "checkpoints")
    absent += ("meta", "splits", "metrics")
    gone = dict.fromkeys(name for name in absent if name not in needs)
    return replace(run, **gone, **{table: Table(values) for table, values in columns.items()})


def result(run, check_id):
    """Return one check's result on a run."""
    (chosen,) = [check for check in checks() if check.id == check_id]
    return chosen.run(with_bad_returns(run) if chosen.sign else run)
