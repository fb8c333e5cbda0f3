"""Options of the agent reach training, and what they mutate is in the checkpoint."""

from small_runs import assert_same_run, interrupted_after, run, small_params, updates_of

from simic.params import PPOParams

EVERYTHING = {
    "learning_rate_schedule": "linear", "entropy_scale": {"slot": 2.0}, "entropy_floor": {"op": 0.5},
    "minibatches": 2, "gradient_accumulation": 2, "ratio": "per_head", "head_weight": "mean",
}  # fmt: skip


def test_a_run_with_every_option_goes_on_as_if_it_had_never_stopped(prepared, tmp_path):
    params = small_params(ppo=PPOParams(**EVERYTHING))
    run(tmp_path / "straight", prepared, params=params)
    interrupted_after(8, tmp_path / "stopped", prepared, params)
    run(tmp_path / "stopped", prepared, params=params)
    assert_same_run(tmp_path / "stopped", tmp_path / "straight")
    rates = [row.metrics["learning_rate"] for row in updates_of(tmp_path / "straight")]
    assert len(set(rates)) > 1
