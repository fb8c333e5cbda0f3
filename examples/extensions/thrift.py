"""A reward term and a mode of one's own: committed accuracy at the end, minus the work the live network does each step.

cp examples/extensions/thrift.py extensions/ && simic run -S 'extensions=[thrift]' -S train.reward.mode=thrift
"""

from torch import Tensor

from simic.envs.rewards import Setting, Transition, mode, term

PRICE = 0.02  # of doubling the host's parameters, per step


@term("live_params")
def live_params(t: Transition, setting: Setting) -> Tensor:
    """-price · seed parameters / host parameters, ``[E]`` float64, on the state after the step."""
    return -PRICE * t.seed_params_after.sum(dim=1).double() / setting.host_params


# Terms are added up; "terminal" and "death" are simic's own.
mode("thrift", ("live_params", "terminal", "death"))
