"""Playing and learning on a device other than the CPU, a simulated one: see simulated_device.py."""

import json
from functools import partial
from pathlib import Path

from tests.envs import simulated_device
from tests.envs.simulated_device import STEPS
from tests.helpers import in_processes


def test_a_device_gives_the_numbers_of_the_cpu_and_is_waited_for_where_it_must(
    tmp_path: Path,
) -> None:
    # A process of its own: a backend is registered for good.
    output = in_processes(tmp_path, partial(simulated_device.main, ["cnn"]))
    counts = json.loads(output.splitlines()[-1])
    a_step = {
        "read distributions.py:refuse_faults": STEPS,
        "read growth_env.py:_measure": STEPS,
        "read groups.py:read": STEPS + 1,
    }
    assert counts["same"]
    assert counts["collecting"] == [a_step, a_step]
    # The numbers of the hosts are fetched once in a run.
    assert [sum(waited.values()) for waited in counts["learning"]] == [2, 1]
    assert all(name.startswith("read ") for waited in counts["learning"] for name in waited)
