"""What the benchmark of rules concludes from scores."""

import numpy as np

from benchmarks import rules


def test_the_table_has_the_mean_of_each_policy_and_its_lead_over_the_rule():
    first = {"held_out": {"tuned_rule": np.array([70.0, 72.0, 74.0]), "tree": np.array([71.0, 73.0, 75.5])}}
    second = {"held_out": {"tuned_rule": np.array([80.0, 82.0, 84.0]), "tree": np.array([79.0, 82.0, 82.0])}}
    text = rules.table({6: first, 9: second})
    assert "## On 3 held-out tasks of known kinds" in text
    # Differences 1, 1, 1.5: mean 7/6, standard error 1/6, t = 4.303.
    assert "| 6 | 72.0 | 73.2, +1.2 [0.4, 1.9] |" in text
    assert "| 9 | 82.0 | 81.0, -1.0 [-3.5, 1.5] |" in text
