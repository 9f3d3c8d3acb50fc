"""The schedulers' files in examples/cluster say one thing, and say it as the scheduler takes it."""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from poise.cli._seats import GPU_FLAGS, GPU_XLA_FLAGS

CLUSTER = Path(__file__).parent.parent / "examples" / "cluster"
KUBERNETES = "1.30"  # a version that JobSet supports, whose types the package has

# JobSet's own type (jobset.x-k8s.io/v1alpha2), as far as the file uses it: what each object may hold, and must.
JOBSET = {
    "": ({"apiVersion", "kind", "metadata", "spec"}, {"apiVersion", "kind", "metadata", "spec"}),
    "spec": (
        {"coordinator", "failurePolicy", "managedBy", "network", "replicatedJobs", "startupPolicy", "successPolicy",
         "suspend", "ttlSecondsAfterFinished"},
        {"replicatedJobs"},
    ),
    "spec.network": ({"enableDNSHostnames", "publishNotReadyAddresses", "subdomain"}, set()),
    "spec.replicatedJobs": ({"dependsOn", "groupName", "name", "replicas", "template"}, {"name", "template"}),
}  # fmt: skip


@pytest.fixture
def jobset() -> Any:
    return yaml.safe_load((CLUSTER / "jobset.yaml").read_text())


def job_of(jobset: Any) -> Any:
    """The Job that JobSet makes of its only template."""
    (workers,) = jobset["spec"]["replicatedJobs"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "poise-workers-0"}, **workers["template"]}


def test_the_envelope_is_a_jobset(jobset: Any) -> None:
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (workers,) = jobset["spec"]["replicatedJobs"]
    for path, found in (
        ("", jobset), ("spec", jobset["spec"]), ("spec.network", jobset["spec"]["network"]),
        ("spec.replicatedJobs", workers),
    ):  # fmt: skip
        may, must = JOBSET[path]
        assert must <= set(found) <= may, path
    assert set(workers["template"]) <= {"metadata", "spec"}


def test_kubernetes_takes_the_job_inside(jobset: Any) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the dev extra brings it")
    job = job_of(jobset)
    kubernetes_validate.validate(job, KUBERNETES, strict=True)
    wrong = copy.deepcopy(job)
    wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_the_numbers_and_names_in_it_agree(jobset: Any) -> None:
    """Every seat has a pod, the coordinator's name is that of seat 0's pod, and a pod that dies comes back."""
    job = job_of(jobset)["spec"]
    container = job["template"]["spec"]["containers"][0]
    env = {e["name"]: e["value"] for e in container["env"]}
    words = shlex.split(container["args"][0].split("exec ")[1])
    seats = sum(int(words[words.index(flag) + 1]) for flag in ("--active", "--spares"))
    assert job["completions"] == job["parallelism"] == int(env["JAX_NUM_PROCESSES"]) == seats
    assert job["completionMode"] == "Indexed", "JOB_COMPLETION_INDEX is the seat"
    assert job["template"]["spec"]["restartPolicy"] == "OnFailure"
    name, (workers,) = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
    host = f"{name}-{workers['name']}-0-0.{jobset['spec']['network']['subdomain']}"
    assert re.fullmatch(rf"{re.escape(host)}:\d+", env["JAX_COORDINATOR_ADDRESS"])
    volumes = {v["name"] for v in job["template"]["spec"]["volumes"]}
    (mount,) = container["volumeMounts"]
    assert mount["name"] in volumes
    assert words[words.index("--out") + 1] == mount["mountPath"]
    check_flags(env)


def test_slurm_starts_as_many_tasks_as_there_are_seats() -> None:
    text = (CLUSTER / "poise.sbatch").read_text()
    words = shlex.split(next(line for line in text.splitlines() if line.startswith("srun")))
    seats = sum(int(words[words.index(flag) + 1]) for flag in ("--active", "--spares"))
    assert f"#SBATCH --ntasks={seats}\n" in text
    exported = " ".join(line for line in text.splitlines() if line.startswith("export"))
    check_flags(dict(w.split("=", 1) for w in shlex.split(exported) if "=" in w))


def check_flags(env: dict[str, str]) -> None:
    """What a launch sets for GPU workers is set: without it survivors of a lost peer hang."""
    assert {k: env[k] for k in GPU_FLAGS} == GPU_FLAGS
    assert env["XLA_FLAGS"].split() == GPU_XLA_FLAGS.split()
