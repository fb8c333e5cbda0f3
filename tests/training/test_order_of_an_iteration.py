"""Scales stand still while episodes are played and move once, before the update; every phase is timed for itself."""

import torch
from small_runs import Watcher, events_of, small_params, steps_of

from simic.envs.growth_env import GrowthEnv
from simic.params import Params
from simic.telemetry import timing
from simic.training import assemble, trainer
from simic.training.session import open_session
from simic.training.trainer import train


class Poisoned(GrowthEnv):
    """Host 2 turns into NaN in the second step of every episode."""

    def _train_epoch(self, slots, read, alive):
        stats = super()._train_epoch(slots, read, alive)
        if self._step == 2:
            self.population._stores["host"].param[2] = torch.nan
        return stats


def test_scales_move_once_per_iteration_between_the_rollout_and_the_update(
    prepared, tmp_path, monkeypatch
):
    with open_session(small_params(iterations=2, validate_every=1), tmp_path, prepared) as session:
        normalizers, ppo = session.state.normalizers, session.state.ppo
        history: list[tuple[str, float]] = []

        def look(moment):
            history.append((moment, float(sum(x.sum() for x in normalizers.state_dict().values()))))

        update = ppo.update

        def watched(rollout, iteration):
            look("update")
            # What is replayed is what was seen: the scales of the rollout, not those of now.
            assert not torch.equal(
                rollout.features, normalizers.observation.normalize(rollout.raw_features)
            )
            result = update(rollout, iteration)
            look("updated")
            return result

        monkeypatch.setattr(ppo, "update", watched)
        train(session, [Watcher(lambda count: look("step"))])
    values = [value for _, value in history]
    places = [moment for moment, _ in history]
    assert places == ["step", "step", "step", "update", "updated"] * 2
    for i in range(2):
        steps, before, after = values[5 * i : 5 * i + 3], values[5 * i + 3], values[5 * i + 4]
        assert len(set(steps)) == 1
        assert before != steps[0]
        assert after == before
        assert i == 0 or steps[0] == values[5 * i - 1]  # validation moved nothing either


def test_every_iteration_is_timed_for_itself_and_in_full(prepared, tmp_path, monkeypatch):
    """A clock that ticks with every step: collecting three steps takes three ticks, in each iteration."""
    now = [100.0]

    def tick(count):
        now[0] += 1.0

    monkeypatch.setattr(trainer.time, "perf_counter", lambda: now[0])
    with open_session(small_params(iterations=2), tmp_path, prepared) as session:
        train(session, [Watcher(tick)])
    rows = timing.read(tmp_path / "timing.jsonl")
    assert [row.collect_seconds for row in rows] == [3.0, 3.0]
    for row in rows:  # and what was not done, as validation in the first, took no time
        assert (row.update_seconds, row.validate_seconds, row.record_seconds) == (0.0, 0.0, 0.0)


def test_a_rollback_is_in_the_telemetry_with_host_and_cause_and_ends_the_hosts_experience(
    prepared, tmp_path, monkeypatch
):
    monkeypatch.setattr(assemble, "GrowthEnv", Poisoned)
    with open_session(small_params(iterations=1, validate_every=9), tmp_path, prepared) as session:
        train(session)
        assert (session.state.counters.rollbacks, session.state.counters.env_steps) == (
            1,
            4 * 3 - 1,
        )
    rollbacks = [row for row in events_of(tmp_path) if row.name == "rollback"]
    assert [(row.step, row.env, row.detail) for row in rollbacks] == [
        (2, 2, "NON_FINITE, 1 rows lost")
    ]
    steps = steps_of(tmp_path)
    assert [row.panicked[2] for row in steps] == [False, True, False]
    assert [row.valid for row in steps] == [[True] * 4, [True] * 4, [True, True, False, True]]
    assert [row.components["death"][2] for row in steps] == [0.0, -10.0, 0.0]
    assert steps[2].reward[2] == 0.0


def test_one_host_one_slot_one_step_is_a_whole_run(prepared, tmp_path):
    tree = small_params(iterations=2).model_dump()
    tree["train"] |= {
        "envs": 1,
        "episode_steps": 1,
        "ppo": {**tree["train"]["ppo"], "minibatches": 1},
    }
    tree["train"]["host"] |= {"family": "mlp", "preset": "baseline", "widths": (8,)}
    with open_session(Params.model_validate(tree), tmp_path, prepared) as session:
        assert session.env.host.slots == 1
        train(session)
        assert session.state.counters.env_steps == 2
    steps = steps_of(tmp_path)
    sizes = [(row.iteration, row.step, len(row.reward), len(row.stage[0])) for row in steps]
    assert sizes == [(0, 1, 1, 1), (1, 1, 1, 1)]
