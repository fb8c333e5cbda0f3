"""Faults of going on after an interruption: what is lost, restored wrongly or exchanged meanwhile.

Training is interrupted in the warm start and once more under PPO.
"""

from tests.faults.fault import Faults, Patch, fault

PPO, SESSION, STATE = "agent/ppo.py", "training/session.py", "training/state.py"
TRAINER = "training/trainer.py"
COUNTERS = "            setattr(self.counters, field.name, scalars[field.name])\n"

FAULTS: Faults = {
    "moments-dropped": fault(
        "The optimizer begins anew after a resume.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch(PPO, '        self.adam.load_tensors(part_of(state, "adam."))\n', ""),
    ),
    "scales-dropped": fault(
        "The scales of observations and rewards begin anew after a resume.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch(STATE, "        self.normalizers.load_state_dict(normalizers)\n", ""),
    ),
    "critic-not-restored": fault(
        "The critic has its first weights again after a resume.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch(
            PPO,
            'self.policy.load_state_dict(part_of(state, "policy."))',
            'actor = {n: x for n, x in part_of(state, "policy.").items() if not n.startswith("critic")}\n'
            "        self.policy.load_state_dict(self.policy.state_dict() | actor)",
        ),
    ),
    "iteration-left-out": fault(
        "A resumed run leaves out one iteration.",
        "training/test_trainer.py",
        Patch(
            TRAINER,
            "range(run.counters.iteration",
            "range(run.counters.iteration + (run.counters.iteration > 0)",
        ),
    ),
    "iteration-done-again": fault(
        "A resumed run does its last iteration once more.",
        "training/test_trainer.py",
        Patch(
            TRAINER,
            "range(run.counters.iteration, session",
            "range(max(0, run.counters.iteration - 1), session",
        ),
    ),
    "updates-forgotten": fault(
        "The number of updates is 0 after a resume, so the entropy schedule begins again.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch(PPO, 'self.updates = int(state["counter.updates"])', "self.updates = 0"),
    ),
    "best-score-forgotten": fault(
        "A resumed run takes the first validation after it for the best.",
        "training/test_resume.py",
        Patch(
            SESSION,
            "counters.best_score = start.best\n",
            "counters.best_score = start.best.iteration, None\n",
        ),
    ),
    "chain-begins-anew": fault(
        "The hash chain of the state forgets its last link at a resume.",
        "reference/test_small_runs.py::test_many_hosts_on_two_cores_are_what_the_reference_computes",
        Patch(STATE, COUNTERS, '            if field.name != "chain":\n    ' + COUNTERS),
    ),
    "minibatches-counted-from-resume": fault(
        "The order of minibatches depends on when the process began.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch(
            TRAINER, "ppo.update(rollout, iteration)", "ppo.update(rollout, iteration - self.first)"
        ),
        Patch(
            TRAINER,
            "        self.stop = stop\n",
            "        self.stop, self.first = stop, session.state.counters.iteration\n",
        ),
    ),
}
