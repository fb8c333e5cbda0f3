"""Playing and learning on a device other than the CPU, a simulated one: see simulated_device.py."""

import json
import subprocess
import sys
from pathlib import Path

from tests.envs.simulated_device import STEPS

ROOT = Path(__file__).parents[2]


def test_a_device_gives_the_numbers_of_the_cpu_and_is_waited_for_where_it_must() -> None:
    # A process of its own: a backend is registered for good.
    command = [sys.executable, "-m", "tests.envs.simulated_device", "cnn"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    counts = json.loads(process.stdout)
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
