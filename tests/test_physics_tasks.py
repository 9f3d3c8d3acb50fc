"""The tasks: errors, honest estimates, references, and no reverse-mode differentiation anywhere."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from poise.cli._solve import solve as solve_command
from poise.cli._solve import tasks as tasks_command
from poise.errors import BadInput
from poise.physics.tasks import Absent, get, names, solve_task

WORDS = {
    *("task", "rel_l2", "reference", "seconds", "first_seconds", "peak_mb", "xla_temp_mb", "points", "features"),
    *("status", "error_estimate", "method"),
}
GOALS = {  # of those that take a second or two; `poise solve` prints the rest
    "wave1d-c": 1e-10,
    "wave1d-pulse": 1e-6,
    "advection": 1e-8,
    "heat2d-ms": 1e-6,
    "helmholtz-1": 1e-7,
    "helmholtz-5": 1e-7,
    "helmholtz-20": 1e-7,
    "hnd": 1e-4,
    "hnd-10": 1e-4,
    "l-shape": 1e-6,
    "pinv": 2.5e-2,
    "poisson2d-c": 2e-6,
    "poisson2d-cg": 5e-4,
    "poisson2d-ms": 1e-5,
    "darcy-jump": 1e-5,
    "ns2d-cg": 1e-3,
    "burgers1d": 2e-6,
    "allen-cahn-periodic": 2e-5,
    "ns2d-c": 3e-4,
    "ns2d-c-p": 2e-3,
}

DATA_ARE_OFF = {"poisson2d-cg"}
"""Tasks that are solved better than their published data: the file of poisson2d-cg is 9.0e-5 off a solution that is
converged to 6e-7, so the distance to it says nothing about an error of 5e-6."""


@pytest.fixture(scope="module")
def forbidden_reverse_mode():
    """Every door to reverse mode raises while the tasks run."""
    from jax._src.interpreters import ad

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("reverse-mode differentiation was called")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("vjp", "grad", "value_and_grad", "jacrev", "linear_transpose", "hessian"):
            patch.setattr(jax, name, refuse)
        for name in [name for name in dir(ad) if name.startswith("backward_pass")]:
            patch.setattr(ad, name, refuse)
        yield


@pytest.mark.parametrize("name", GOALS)
def test_task_reaches_its_goal_and_knows_its_error(name: str, forbidden_reverse_mode: None) -> None:
    try:
        report = solve_task(name, warm=False)
    except Absent as absent:
        pytest.skip(str(absent))
    assert set(report) >= WORDS
    assert report["status"] == "converged"
    assert report["rel_l2"] <= GOALS[name]
    error = true_error(name) if name in DATA_ARE_OFF else report["rel_l2"]
    if error > 1e-11:  # below that rounding speaks, not the method
        assert 0.1 <= report["error_estimate"] / error <= 10.0, report


def true_error(name: str) -> float:
    """Relative L2 error against the project's own solution, converged further than the data are."""
    task = get(name)
    reference = replace(task, data=None).reference(task.tol)
    values = np.reshape(task.measure(task.solve(task.tol, None), reference.points), reference.values.shape)
    return float(np.linalg.norm(values - reference.values) / np.linalg.norm(reference.values))


def test_reverse_mode_is_really_forbidden(forbidden_reverse_mode: None) -> None:
    with pytest.raises(AssertionError):
        jax.grad(lambda v: v * v)(1.0)


def test_a_tolerance_that_is_not_met_is_not_called_converged() -> None:
    report = solve_task("helmholtz-1", tol=1e-16, warm=False)
    assert report["status"] == "tolerance_missed"


def test_commands_know_the_tasks(tmp_path) -> None:
    listed = tasks_command()
    assert [row["task"] for row in listed] == list(names())
    report = solve_command("advection", plot=tmp_path / "a.png")
    assert report["rel_l2"] < 1e-8
    assert (tmp_path / "a.png").stat().st_size > 1000
    with pytest.raises(BadInput, match="No task is called"):
        solve_command("poison2d-c")
    with pytest.raises(BadInput, match="Galerkin"):
        solve_command("cavity-re1000", points=1000)


def test_absent_data_are_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("POISE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(Absent, match="POISE_DATA"):
        get("burgers1d").reference(1e-6)


def test_inverse_estimate_covers_its_error_over_seeds() -> None:
    from poise.physics import solve
    from poise.physics.tasks._inverse import NOISE, _pinv, pinv

    assert NOISE == 0.1
    points = get("pinv").scatter(1000)
    exact = _pinv(points)
    errors = []
    for seed in (1, 2, 3, 4, 5):
        solution = solve(pinv(seed), 3e-2)
        values = np.stack([solution.field(name, points) for name in ("u", "a")], axis=1)
        errors.append(np.linalg.norm(values - exact) / np.linalg.norm(exact))
        assert 0.1 < solution.error_estimate / errors[-1] < 10
    assert np.median(errors) < 2e-2
