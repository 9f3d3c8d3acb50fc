"""Three active processes and a spare on a Ray cluster: python on_ray.py (needs ray; each task has a GPU of its own)."""

import os
import subprocess

import ray

ACTIVE, SPARES = 3, 1
SEATS = ACTIVE + SPARES


@ray.remote(num_gpus=1, max_retries=-1)
def seat(number: int, coordinator: str) -> int:
    """One process in its seat; Ray starts it again when it dies, and it becomes the next spare."""
    env = dict(
        os.environ, JAX_COORDINATOR_ADDRESS=coordinator, JAX_NUM_PROCESSES=str(SEATS), JAX_PROCESS_ID=str(number)
    )
    command = f"poise worker burgers2d --active {ACTIVE} --spares {SPARES} --out /shared/out"
    return subprocess.run(command.split(), env=env, check=True).returncode


@ray.remote(num_gpus=1)
def address() -> str:
    """Where seat 0 will be: tasks with this node's affinity see this address."""
    return ray.util.get_node_ip_address()


if __name__ == "__main__":
    ray.init()
    first = ray.get(address.remote())
    pin = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    node = next(n["NodeID"] for n in ray.nodes() if n["NodeManagerAddress"] == first)
    tasks = [seat.options(scheduling_strategy=pin(node, soft=False)).remote(0, f"{first}:6669")]
    tasks += [seat.remote(number, f"{first}:6669") for number in range(1, SEATS)]
    ray.get(tasks)
