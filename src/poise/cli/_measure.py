"""`poise bench`, `poise solve` and `poise tasks` in the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from ..errors import BadInput
from . import _solve
from ._output import check_json, console, write_json
from ._platform import cpu_devices

BENCHES = (
    *("stencil2d", "stencil3d", "adamw-sealed", "gate-scan", "record-update", "record-gradient", "pack"),
    *("unpack", "burgers-stage", "seal", "kept"),
    *("memory", "physics", "llama8b"),
)
OTHERS = ("kept", "memory", "physics", "llama8b")
"""Those that are no kernels."""


def bench(names: tuple[str, ...], json: str | None) -> int:
    """Kernels and guards against peers, side by side in this run."""
    check_json(json)
    unknown = [n for n in names if not any(n in b or b in n for b in BENCHES)]
    if unknown:
        raise BadInput(f"There is no benchmark {unknown[0]!r}; accepted are {', '.join(BENCHES)}.")
    cpu_devices(4)
    rows: list[dict] = []
    kernel_names = tuple(n for n in names if n not in OTHERS)
    if kernel_names or not names:
        from ..kernels._bench import bench as kernels

        rows += [dict(row) for row in kernels(kernel_names)]
    if not names or any("kept" in n for n in names):
        from ._bench_kept import kept

        rows += kept()
    if not names or "memory" in names:
        from ._bench_physics import memory

        rows += memory()
    if not names or "physics" in names:
        from ._bench_physics import physics

        rows += physics()
    if any(n == "llama8b" for n in names):  # minutes long, so only if it is asked for
        from ._bench_llama_rows import rows as llama

        rows += llama()
    write_json(rows, json)
    table = Table("what", "shape", "ours, ms", "peer", "peer, ms", "ratio", "of ceiling", box=SIMPLE)
    for row in rows:
        shape = " x ".join(str(n) for n in row["shape"])
        ceiling = "-" if row["of_ceiling"] is None else f"{row['of_ceiling']:.2f}"
        table.add_row(
            row["name"], shape, f"{1e3 * row['ours_s']:.3f}", row["peer"],
            "-" if row["peer_s"] is None else f"{1e3 * row['peer_s']:.3f}",
            f"{row['ratio']:.2f}", ceiling,
        )  # fmt: skip
    show = console(json)
    show.print(table)
    if rows:
        show.print(
            f"{rows[0]['device']}; ratio = peer's time / our time, above 1 we win (memory: of XLA's temporaries)"
        )
    return 0


def solve(task: str, tol: float | None, points: int | None, plot: Path | None, json: str | None) -> int:
    """Solve a named task; the exit status is 0 whatever its verdict, which the report says."""
    check_json(json)
    if tol is not None and not 0 < tol < 1:
        raise BadInput(f"The tolerance is a relative error between 0 and 1, not {tol}.")
    if points is not None and points < 1:
        raise BadInput(f"The number of points must be positive, not {points}.")
    report = _solve.solve(task, tol=tol, points=points, plot=plot)
    write_json(report, json)
    show = console(json)
    error = "unknown" if report["rel_l2"] is None else f"{report['rel_l2']:.2e}"
    show.print(f"{report['task']}: {report['status']} by {report['method']}", soft_wrap=True)
    show.print(f"relative L2 error {error} against {report['reference']}, estimated {report['error_estimate']:.2e}")
    for name, distance in report.get("beside", {}).items():
        show.print(f"{distance:.1e} from {name}")
    show.print(
        f"{report['seconds']:.2f} s ({report['first_seconds']:.2f} s the first time), {report['features']} features, "
        f"{report['points']} points, peak {report['peak_mb']:.0f} MB"
    )
    return 0


def tasks(json: str | None) -> int:
    """List the tasks."""
    check_json(json)
    rows = _solve.tasks()
    write_json(rows, json)
    table = Table("task", "what", "tolerance", "reference", box=SIMPLE)
    for row in rows:
        table.add_row(row["task"], row["title"], f"{row['tol']:.0e}", row["reference"])
    console(json).print(table)
    return 0
