"""The public face: what is exported, what importing does not do, and that the documentation runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import poise

ROOT = Path(__file__).parents[1]

EXPORTED = {
    "BadInput", "Code", "Exhausted", "Gate", "Health", "Keeper", "Limits", "Missing", "Options", "Placement",
    "PoiseError", "Pool", "Scrub", "SealReport", "Sealed", "Stopped", "Traits", "Workload", "include_dir", "keep",
    "repair", "scrub", "seal", "verify",
}  # fmt: skip


def run(code: str, cwd: Path = ROOT, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=110, check=False, cwd=cwd,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_export_list() -> None:
    modules = {"cli", "control", "devices", "errors", "events", "faults", "gate", "keeper", "kernels", "llama",
               "memory", "optim", "physics", "seal"}  # fmt: skip
    assert {n for n in vars(poise) if not n.startswith("_")} - (modules - EXPORTED) == EXPORTED
    assert all(getattr(poise, name).__doc__ for name in EXPORTED)


def test_importing_changes_nothing_and_starts_nothing() -> None:
    code = (
        "import sys, threading; import jax, poise; "
        "assert jax.numpy.arange(2.0).dtype == jax.numpy.float32; "
        "assert threading.active_count() == 1; "
        "assert not {'rich', 'cyclopts', 'matplotlib', 'optax', 'equinox'} & set(sys.modules); print('light')"
    )
    assert run(code) == "light\n"


@pytest.mark.parametrize("name", ["bare", "equinox_mlp", "seal_anything", "my_workload", "records"])
def test_the_examples_run(name: str, tmp_path: Path) -> None:
    said = run((ROOT / "examples" / f"{name}.py").read_text(), tmp_path)
    assert said.strip()


def test_the_readme_example_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 22
    assert float(run(code, tmp_path)) < 10


def test_links_in_the_documentation_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "design").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_commands_in_the_documentation_exist() -> None:
    known = {
        "demo",
        "generate",
        "run",
        "stream",
        "launch",
        "worker",
        "plan",
        "serve",
        "status",
        "doctor",
        "bench",
        "solve",
        "tasks",
    }
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for command in re.findall(r"`poise ([a-z]+)", page.read_text()):
            assert command in known, f"{page.name}: poise {command}"
