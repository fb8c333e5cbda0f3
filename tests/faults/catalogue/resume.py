"""Faults of going on after an interruption: what is lost, restored wrongly or exchanged meanwhile.

Training is interrupted in the warm start and once more under PPO.
"""

from tests.faults import tampering as files
from tests.faults.fault import Faults, Patch, Tampering, critical, high, medium

PPO, SESSION, STATE = "agent/ppo.py", "training/session.py", "training/state.py"
TRAINER = "training/trainer.py"
COUNTERS = "            setattr(self.counters, field.name, scalars[field.name])\n"

FAULTS: Faults = {
    "moments-dropped": critical(
        "The optimizer begins anew after a resume.",
        Patch(PPO, '        self.adam.load_tensors(part_of(state, "adam."))\n', ""),
    ),
    "scales-dropped": critical(
        "The scales of observations and rewards begin anew after a resume.",
        Patch(STATE, "        self.normalizers.load_state_dict(normalizers)\n", ""),
    ),
    "critic-not-restored": critical(
        "The critic has its first weights again after a resume.",
        Patch(
            PPO,
            'self.policy.load_state_dict(part_of(state, "policy."))',
            'actor = {n: x for n, x in part_of(state, "policy.").items() if not n.startswith("critic")}\n'
            "        self.policy.load_state_dict(self.policy.state_dict() | actor)",
        ),
    ),
    "iteration-left-out": critical(
        "A resumed run leaves out one iteration.",
        Patch(TRAINER, "range(run.counters.iteration", "range(run.counters.iteration + (run.counters.iteration > 0)"),
    ),
    "iteration-done-again": critical(
        "A resumed run does its last iteration once more.",
        Patch(TRAINER, "range(run.counters.iteration, session", "range(max(0, run.counters.iteration - 1), session"),
    ),
    "updates-forgotten": high(
        "The number of updates is 0 after a resume, so the entropy schedule begins again.",
        Patch(PPO, 'self.updates = int(state["counter.updates"])', "self.updates = 0"),
    ),
    "best-score-forgotten": high(
        "A resumed run takes the first validation after it for the best.",
        Patch(SESSION, "counters.best_score = start.best\n", "counters.best_score = start.best.iteration, None\n"),
    ),
    "chain-begins-anew": high(
        "The hash chain of the state forgets its last link at a resume.",
        Patch(STATE, COUNTERS, '            if field.name != "chain":\n    ' + COUNTERS),
    ),
    "minibatches-counted-from-resume": high(
        "The order of minibatches depends on when the process began.",
        Patch(TRAINER, "ppo.update(rollout, iteration)", "ppo.update(rollout, iteration - self.first)"),
        Patch(
            TRAINER,
            "        self.stop = stop\n",
            "        self.stop, self.first = stop, session.state.counters.iteration\n",
        ),
    ),
    "weights-edited-meanwhile": high(  # training goes back to an earlier checkpoint and says so
        "Weights of the checkpoint were changed between interruption and resume, and its checksums with them.",
        Tampering("interrupted", files.change_latest_weights),
    ),
    "telemetry-edited-meanwhile": medium(  # training goes back to an earlier checkpoint and says so
        "A file of the telemetry log was changed between interruption and resume.",
        Tampering("interrupted", files.damage_log),
    ),
}
