"""`poise demo llama`: a small language model, trained and continued, clean and struck, side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from ..errors import need
from ..faults._inject import watched_steps
from ._demo import _on_accelerators, fitted
from ._engine import kept_run
from ._job import load_job
from ._observe import Observer
from ._output import check_json, console, dump, out_directory, write_json
from ._platform import cpu_devices, pool
from ._progress import Live
from ._report import fault_table, kept_promises, report, summary
from ._run import load_faults

PROMPT = "def "
NEW = 96
"""Tokens of text that either run writes at the end."""


def demo(out: Path, json: str | None) -> int:
    """Run it; the exit status is 1 if a promise was broken."""
    check_json(json)
    where = out_directory(out)
    job = load_job("llama")
    cpu_devices((job.active or 2) + (job.spares or 1))
    job = job if jax.default_backend() == "cpu" else _on_accelerators(job, len(jax.devices()))
    workload, devices = job.make(), pool(job.active, job.spares)
    script = fitted(load_faults("llama_faults"), len(devices.active), len(devices.spares))
    job = replace(job, limits=replace(job.limits, memory_faults=len(script)))
    show = console(json)
    with _compiled_once(), Live() as live:
        known: dict[int, str] = {}
        first, second = Observer(workload), Observer(workload, where)
        clean = kept_run(
            job, workload, devices, clean=known, watch=watched_steps(script), each=first,
            listen=[live.run("clean", workload.steps)],
        )  # fmt: skip
        struck = kept_run(
            job, workload, devices, journal=where / "run.db", snapshots=where / "snapshots", script=script, clean=known,
            listen=[live.run("with faults", workload.steps)], each=second,
        )  # fmt: skip
        if struck.stopped is not None:
            raise struck.stopped
        said = report(workload, devices, struck, clean) | second.said(struck)
        said["clean_losses"] = [first.losses[i] for i in sorted(first.losses)]
        said["losses_identical"] = said["losses"] == said["clean_losses"]
        said["text"], said["clean_text"], said["generation"] = _texts(workload, clean.state, struck.state)
    said["text_identical"] = said["text"] == said["clean_text"]
    _picture(said, where / "llama.png")
    dump(said, where / "report.json")
    write_json(said, json)
    fault_table(show, said)
    summary(show, said)
    show.print(
        f"{len(said['losses'])} losses identical: {said['losses_identical']}; text identical: {said['text_identical']}"
    )
    show.print(f"text, with a struck cache and struck weights:\n{PROMPT}{said['text']}", markup=False, highlight=False)
    show.print(f"written: {where}/report.json, run.db, llama.png, model/, snapshots/", soft_wrap=True)
    broken = kept_promises(said)
    if not said["losses_identical"]:
        broken.append("the losses differ from the clean run's")
    if not said["text_identical"]:
        broken.append("the text differs from the clean run's")
    for sentence in broken:
        show.print(f"[red]broken promise:[/red] {sentence}", soft_wrap=True)
    return 1 if broken else 0


@contextmanager
def _compiled_once() -> Iterator[None]:
    """The two runs have the same programs: the second one finds them."""
    before = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if before is not None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="poise-demo-") as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        try:
            yield
        finally:
            jax.config.update("jax_compilation_cache_dir", before)
            compilation_cache.reset_cache()  # or it would go on writing to a folder that is gone


def _texts(workload: Any, clean: Any, struck: Any) -> tuple[str, str, dict[str, Any]]:
    """The struck run's text (its cache and weights are struck while it is written), the clean run's, and what was
    found."""
    from ..llama import Sampling, Session

    sampling = Sampling(0.7, 0.95)

    words = workload.text_tokens
    numbers = words.encode(PROMPT)
    calm = Session(workload.weights(clean), workload.config, [numbers], NEW, sampling=sampling)
    text = words.decode(calm.finish()[0])
    session = Session(workload.weights(struck), workload.config, [numbers], NEW, sampling=sampling)
    rng = np.random.default_rng(0)
    for _ in range(NEW // 3):
        session.step()
    assert session.cache is not None
    assert session.sealed is not None
    keys = np.array(session.cache.k)
    row = keys[rng.integers(keys.shape[0]), 0, rng.integers(len(numbers) + 8)]
    row[rng.integers(row.shape[0]), rng.integers(row.shape[1])] *= -1
    session.cache = session.cache._replace(k=jnp.asarray(keys))
    for _ in range(NEW // 3):
        session.step()
    down = np.array(session.sealed.data["layers"]["down"])
    down[0, 1, :64] = 1.0
    layers = {**session.sealed.data["layers"], "down": jnp.asarray(down)}
    session.sealed = replace(session.sealed, data={**session.sealed.data, "layers": layers})
    struck_text = words.decode(session.finish()[0])
    found = session.report
    seen = {"cache_rows": found.cache_rows, "weights_found": found.weights_found, "rewound": found.rewound}
    return struck_text, text, seen | {"notes": found.notes}


def _picture(said: dict[str, Any], path: Path) -> None:
    """Both loss curves, and what struck when."""
    try:
        import matplotlib
    except ImportError as error:
        raise need("matplotlib", "cli") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from ._plot import COLOURS

    fig, ax = plt.subplots(figsize=(10, 4.8), layout="constrained")
    ax.plot(said["clean_losses"], color="#bbbbbb", linewidth=5, label="clean run")
    ax.plot(said["losses"], color="#1d3557", linewidth=1.2, label=f"run with {len(said['faults'])} faults")
    top = max(said["losses"])
    for i, f in enumerate(said["faults"]):
        colour = COLOURS.get(f["action"], "red")
        ax.axvline(f["step"], color=colour, linewidth=1, linestyle=":")
        ax.annotate(f"{f['label']}\n{f['action']}", (f["step"], top), xytext=(2, -8 - 26 * (i % 3)),
                    textcoords="offset points", fontsize=8, color=colour)  # fmt: skip
    same = "identical, bit for bit" if said["losses_identical"] and said["bit_identical"] else "different"
    ax.set(xlabel="step", ylabel="loss, nats per byte", title=f"A small Llama on Python's sources: both runs {same}")
    ax.legend(frameon=False, loc="center right")
    ax.spines[["top", "right"]].set_visible(False)
    fig.savefig(path, dpi=110)
    plt.close(fig)
