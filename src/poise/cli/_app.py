"""The commands, their words and their exit statuses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from .. import __version__
from ..errors import BadInput, PoiseError

app = App(
    name="poise",
    help="Keeps long JAX runs right and running. Every command takes --json PATH ('-' for standard output).",
    version=__version__,
)

Json = Annotated[
    str | None,
    # Without the hyphen allowed, a lone "-" is taken for an option and not for the value.
    Parameter(help="Write the report as JSON to this file; '-' for standard output.", allow_leading_hyphen=True),
]
Serve = Annotated[bool, Parameter(help="Show the run on a page of this machine (extra: serve).", negative="")]
Port = Annotated[int, Parameter(help="Port of the page; 0 takes a free one.")]
Out = Annotated[Path | None, Parameter(help="Directory for the journal, snapshots and the report.")]


def run_command(tokens: list[str]) -> int:
    """Run one command; returns the exit status. Errors become one sentence on standard error."""
    try:
        result = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except (CycloptsError, PoiseError) as error:
        print(f"poise: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_status if isinstance(error, PoiseError) else 2
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        print("poise: interrupted", file=sys.stderr)
        return 130
    return result if isinstance(result, int) else 0


@app.command
def demo(
    what: str = "burgers2d",
    *,
    out: Path = Path("poise-out"),
    serve: Serve = False,
    port: Port = 8765,
    json: Json = None,
) -> int:
    """Run burgers2d on this machine's devices, clean and with scripted faults, and show that both end alike.

    Parameters
    ----------
    what
        burgers2d, or llama: a small language model is trained and continues a text.
    out
        Directory for report.json, the journal run.db, the picture demo.png and snapshots.
    """
    if what == "llama":
        from ._demo_llama import demo as llama

        return llama(out, json)
    if what != "burgers2d":
        raise BadInput(f"There is no demo {what!r}; accepted are burgers2d and llama.")
    from ._demo import demo as command

    return command(out, serve, port, json)


@app.command
def run(
    job: str,
    *,
    faults: Annotated[str | None, Parameter(help="A fault script (TOML), or the name of a packaged one.")] = None,
    out: Out = None,
    resume: Annotated[Path | None, Parameter(help="Directory of an earlier run to go on from.")] = None,
    active: Annotated[int | None, Parameter(help="Active devices, instead of the job's.")] = None,
    spares: Annotated[int | None, Parameter(help="Spare devices, instead of the job's.")] = None,
    compare: Annotated[
        bool | None, Parameter(help="Run the job clean as well and compare. Default: with --faults or --resume.")
    ] = None,
    overhead: Annotated[bool, Parameter(help="Measure the cost of keeping against an unguarded run.")] = False,
    serve: Serve = False,
    port: Port = 8765,
    govern: Annotated[
        bool,
        Parameter(help="Take orders and watch the hardware, without a page of its own (extra: serve).", negative=""),
    ] = False,
    json: Json = None,
) -> int:
    """Run a job, kept.

    Parameters
    ----------
    job
        A job file (TOML), the name of a packaged one (burgers2d), or module:object for a workload of your own.
    """
    from ._run import run as command

    return command(job, faults, out, resume, active, spares, compare, overhead, serve, port, govern, json)


@app.command
def stream(
    job: str = "stream",
    *,
    source: Annotated[
        str | None, Parameter(help="A live stream's name or path, a recorded .npz, or 'example'; instead of the job's.")
    ] = None,
    records: Annotated[int | None, Parameter(help="Records per frame of the example, instead of the job's.")] = None,
    rate: Annotated[float | None, Parameter(help="Frames per second of the example, instead of the job's.")] = None,
    seconds: Annotated[float | None, Parameter(help="How long to follow, instead of the job's.")] = None,
    out: Annotated[
        Path | None, Parameter(help="Directory for report.json, the journal run.db, estimate.npz and stream.png.")
    ] = None,
    json: Json = None,
) -> int:
    """Follow live records: relax the field, contain what is broken, name the sensors that fail.

    Parameters
    ----------
    job
        A job file (TOML) with workload = "stream". Default: the packaged one, which builds and starts the example
        producer (a C++ compiler is needed) for ten seconds.
    """
    from ._stream import stream as command

    return command(job, source, records, rate, seconds, out, json)


@app.command
def launch(
    job: str,
    *,
    active: Annotated[int | None, Parameter(name=["-n", "--active"], help="Active processes, one device each.")] = None,
    spares: Annotated[int | None, Parameter(help="Spare processes.")] = None,
    faults: Annotated[str | None, Parameter(help="A script of kills (TOML), or the name of a packaged one.")] = None,
    out: Out = None,
    resume: Annotated[Path | None, Parameter(help="Directory of an earlier run to go on from.")] = None,
    serve: Annotated[
        str | None, Parameter(help="Start no workers: coordinate, at HOST:PORT, those that a scheduler starts.")
    ] = None,
    overhead: Annotated[bool, Parameter(help="Measure the cost of the protection against losses.")] = False,
    json: Json = None,
) -> int:
    """Run a job over several processes, any of which may be killed.

    Parameters
    ----------
    job
        As for run.
    """
    from ._launch import launch as command

    return command(job, active, spares, faults, out, resume, serve, overhead, json)


@app.command
def worker(
    job: str, *, active: int, spares: int, out: Path, source: str | None = None, resume: Path | None = None
) -> int:
    """Be one process of a run over several, under a cluster's scheduler; poise launch starts these itself.

    Parameters
    ----------
    job
        As for run.
    active
        Active processes of the run.
    spares
        Spare processes of the run.
    out
        Directory for the journal and snapshots, the same for all.
    source
        Of a lost shard: parity or replica; instead of the job's.
    resume
        Directory with snapshots to go on from.
    """
    from ._worker import worker as command

    return command(job, active, spares, out, resume, source)


@app.command
def plan(
    job: str, *, active: int | None = None, spares: int | None = None, source: str | None = None, json: Json = None
) -> int:
    """Say what keeping a job will cost here and what is survivable. Compiles one placement, runs nothing.

    Parameters
    ----------
    job
        As for run.
    source
        Of a lost shard: auto, replica, snapshot or parity; instead of the job's.
    """
    from ._plan import plan as command

    return command(job, active, spares, source, json)


@app.command
def status(
    journal: Path,
    *,
    watch: Annotated[bool, Parameter(help="Follow the run until it ends (extra: serve).", negative="")] = False,
    json: Json = None,
) -> int:
    """Say how a run is and what happened in it.

    Parameters
    ----------
    journal
        A run's journal, such as poise-out/run.db; may be read while the run goes on.
    """
    from ._status import status as command

    return command(journal, watch, json)


@app.command
def serve(
    journal: Path,
    *,
    port: Port = 8765,
    host: Annotated[
        str, Parameter(help="Address to bind to; from another than this machine's own, reading needs the token too.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None, Parameter(help="File that holds the token for actions; left out: a new one, printed.")
    ] = None,
    run: Annotated[int | None, Parameter(help="An earlier run of the journal, instead of the newest.")] = None,
    until_closed: Annotated[bool, Parameter(show=False, negative="")] = False,
) -> int:
    """Show a run on a live page, with /metrics for Prometheus and /api/v1 as JSON. Ends with Ctrl-C.

    Parameters
    ----------
    journal
        A run's journal, such as poise-out/run.db; the run may go on, or be over.
    """
    from ._serve import serve as command

    return command(journal, port, host, token_file, run, until_closed)


@app.command
def doctor(*, json: Json = None) -> int:
    """Say what this machine has and lacks."""
    from ._doctor import doctor as command

    return command(json)


@app.command
def bench(*names: str, json: Json = None) -> int:
    """Time kernels and guards against peers, side by side in one run, on fresh random inputs.

    Parameters
    ----------
    names
        Which ones: stencil2d, stencil3d, adamw-sealed, gate-scan, record-update, pack, unpack, seal, kept,
        memory, physics; all of these if none; and llama8b, which takes minutes and a GPU.
    """
    from ._measure import bench as command

    return command(names, json)


@app.command
def solve(
    task: str, *, tol: float | None = None, points: int | None = None, plot: Path | None = None, json: Json = None
) -> int:
    """Solve a differential equation forward-only, and measure it against its reference.

    Parameters
    ----------
    task
        One of `poise tasks`.
    tol
        Relative error to aim at, instead of the task's own.
    points
        Number of collocation points, where the method has them.
    plot
        A picture file to write.
    """
    from ._measure import solve as command

    return command(task, tol, points, plot, json)


@app.command
def generate(
    directory: Path,
    prompt: str,
    *,
    tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    sweep: int = 16,
    protect: bool = True,
    abft: str = "all",
    dtype: str | None = None,
    json: Json = None,
) -> int:
    """Continue a text with a Llama whose weights and cache are sealed and whose matrix products are checked.

    Parameters
    ----------
    directory
        A checkpoint: config.json, safetensors, tokenizer.json (or none, for a model over bytes).
    prompt
        The text to continue.
    tokens
        How many tokens to add at most.
    temperature
        0 takes the likeliest token each time.
    top_p
        Draw from the likeliest tokens that together have this probability.
    seed
        Of the draws: the same one gives the same text.
    sweep
        Tokens per sweep over the weights; 1 verifies all of them before every token.
    protect
        Seal weights and cache.
    abft
        Check the matrix products of no layer (off), of every eighth, others with each token (audit), or of all (all).
    dtype
        bfloat16 or float32, instead of the checkpoint's own.
    """
    from ._generate import generate as command

    return command(directory, prompt, tokens, temperature, top_p, seed, sweep, protect, abft, dtype, json)


@app.command
def tasks(*, json: Json = None) -> int:
    """List the tasks that `poise solve` knows."""
    from ._measure import tasks as command

    return command(json)
