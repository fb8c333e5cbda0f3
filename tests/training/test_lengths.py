"""Where the length of an episode is a range, each iteration plays as long as its hash says; validation never varies."""

from collections import Counter

from small_runs import assert_same_run, episodes_of, interrupted_after, run, small_params, steps_of

from simic.training.session import open_session

LOW, HIGH, ITERATIONS = 2, 5, 4


def drawn():
    return small_params(episode_steps=(LOW, HIGH), iterations=ITERATIONS, validate_every=1)


def test_iterations_are_as_long_as_drawn_and_validation_always_as_long(prepared, tmp_path):
    with open_session(drawn(), tmp_path / "other", prepared) as session:
        lengths = [session.env.length_of(iteration) for iteration in range(ITERATIONS)]
    run(tmp_path / "run", prepared, params=drawn())
    assert len(set(lengths)) > 1 and all(LOW <= length <= HIGH for length in lengths)
    assert Counter(row.iteration for row in steps_of(tmp_path / "run")) == dict(enumerate(lengths))
    validated = episodes_of(tmp_path / "run", "validation")
    assert [iteration for iteration, _ in validated] == list(range(ITERATIONS))
    middle = 4  # of 2 to 5, rounded up
    assert all((columns["length"] == middle).all() for _, columns in validated)


def test_a_run_stopped_inside_such_an_episode_goes_on_as_if_it_had_not_been(prepared, tmp_path):
    run(tmp_path / "whole", prepared, params=drawn())
    interrupted_after(5, tmp_path / "work", prepared, drawn())
    run(tmp_path / "work", prepared, params=drawn())
    assert_same_run(tmp_path / "work", tmp_path / "whole")
