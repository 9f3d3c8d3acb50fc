"""Bad input: exit status 2, one sentence on standard error, nothing half-written."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import string
import tomllib
from pathlib import Path

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from poise.cli._app import run_command
from poise.cli._job import load_field, load_job
from poise.control import Journal
from poise.errors import BadInput
from poise.events import RunStarted
from poise.faults import load_script, parse_script
from poise.faults._script import KINDS

GOOD_JOB = 'workload = "burgers2d"\n[params]\nn = 16\n[devices]\nactive = 2\nspares = 1\n'


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with a good job in it, to work in; the backend runs, so that no command can make more devices."""
    assert len(jax.devices()) == 8
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(GOOD_JOB)
    return tmp_path


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}


def refused(capfd, folder: Path, *tokens: str) -> str:
    """Run the command; it must be refused as DESIGN says, and leave the folder as it was. Returns the sentence."""
    before = listing(folder)
    status = run_command(list(tokens))
    out, err = capfd.readouterr()
    assert status == 2, f"{tokens} ended with {status}: {err}"
    assert out == "", "only reports go to standard output"
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("poise: ")
    assert len(lines[0]) > len("poise: ") + 20, "a sentence, not a word"
    assert "Traceback" not in err
    assert listing(folder) == before, "something was half-written"
    return lines[0]


# -- job files --------------------------------------------------------------------------------------------------------

BURGERS = 'workload = "burgers2d"\n'
BAD_JOBS = {
    "no TOML": ("workload = ", "not valid TOML"),
    "not UTF-8": (b"workload = '\xff'", "not valid TOML"),
    "empty": ("", "which workload"),
    "workload of a wrong type": ("workload = 3", "which workload"),
    "unknown key": (BURGERS + "colour = 1", "colour"),
    "unknown table": (BURGERS + "[device]\nactive = 2", "device"),
    "unknown device key": (BURGERS + "[devices]\nactve = 2", "actve"),
    "unknown keeper key": (BURGERS + "[keeper]\nevry = 2", "evry"),
    "unknown policy key": (BURGERS + "[policy]\ntrys = 2", "trys"),
    "unknown parameter": (BURGERS + "[params]\nm = 16", "'m'"),
    "table that is none": ('devices = 3\nworkload = "burgers2d"', "devices must be a table"),
    "params that are none": ('params = 3\nworkload = "burgers2d"', "params must be a table"),
    "list of params": ('params = [["n", 3]]\nworkload = "burgers2d"', "params must be a table"),
    "tables of params": (BURGERS + "[[params]]\nn = 16", "params must be a table"),
    "text for a number": (BURGERS + '[devices]\nactive = "two"', "devices.active must be int"),
    "float for a number": (BURGERS + "[devices]\nspares = 1.0", "devices.spares must be int"),
    "truth for a number": (BURGERS + "[keeper]\nevery = true", "keeper.every must be int"),
    "number for truth": (BURGERS + "[keeper]\nfused = 1", "keeper.fused must be bool"),
    "no active device": (BURGERS + "[devices]\nactive = 0", "at least one active"),
    "negative spares": (BURGERS + "[devices]\nspares = -1", "negative"),
    "too deep": (BURGERS + "[keeper]\ndepth = 99", "depth"),
    "snapshot never": (BURGERS + "[keeper]\nevery = 0", "every 0 steps"),
    "unknown source": (BURGERS + '[keeper]\nsource = "cloud"', "cloud"),
    "no patience": (BURGERS + "[policy]\ntries = 0", "1 or more"),
    "text for n": (BURGERS + '[params]\nn = "16"', "n = '16'"),
    "n too small": (BURGERS + "[params]\nn = 1", "n >= 2"),
    "n is NaN": (BURGERS + "[params]\nn = nan", "n = nan"),
    "negative viscosity": (BURGERS + "[params]\nnu = -1.0", "nu > 0"),
    "infinite viscosity": (BURGERS + "[params]\nnu = inf", "nu = inf"),
    "infinite time": (BURGERS + "[params]\nt_end = inf", "t_end = inf"),
    "unknown precision": (BURGERS + '[params]\ndtype = "float8"', "float8"),
    "unstable": (BURGERS + "[params]\nn = 64\nsteps = 3", "stable"),
    "half a step": (BURGERS + "[params]\nn = 16\nsteps = 50.5", "step"),
    "initial of a wrong type": (BURGERS + "[params]\ninitial = 3", "initial"),
    "unknown workload": ('workload = "burgers3d"', "burgers3d"),
    "workload from nowhere": ('workload = "no_such_module:Thing"', "no_such_module"),
    "workload that is none": ('workload = "json:dumps"', "json:dumps"),
    "object without a signature": ('workload = "builtins:min"', "builtins:min"),
    "relative module": ('workload = ".near:Thing"', ".near"),
}


@pytest.mark.parametrize("kind", BAD_JOBS)
def test_a_bad_job_file_is_refused(kind, folder, capfd):
    text, names = BAD_JOBS[kind]
    (folder / "bad.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert names in refused(capfd, folder, "run", "bad.toml", "--out", "out")


@pytest.mark.parametrize("job", ["missing.toml", ".", "burgers3d", "job.toml/x", "os:path", "os:", ":x", "a\nb", ""])
def test_a_job_that_is_none_is_refused(job, folder, capfd):
    refused(capfd, folder, "run", job, "--out", "out")
    refused(capfd, folder, "plan", job)


def test_a_module_that_cannot_be_imported_is_refused(folder, capfd, monkeypatch):
    (folder / "broken_workload.py").write_text("raise RuntimeError('two\\nlines')\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    assert "two lines" in refused(capfd, folder, "run", "broken_workload:Thing")


# -- command lines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens",
    [
        ["fly"],
        ["run"],
        ["run", "job.toml", "--depth", "3"],
        ["run", "job.toml", "--active", "two"],
        ["run", "job.toml", "extra"],
        ["run", "job.toml", "--active", "0"],
        ["run", "job.toml", "--spares", "-1"],
        ["plan", "job.toml", "--source", "cloud"],
        ["plan", "job.toml", "--source", "replica"],
        ["status"],
        ["doctor", "--json"],
    ],
    ids=" ".join,
)
def test_a_bad_command_line_is_refused(tokens, folder, capfd):
    refused(capfd, folder, *tokens)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--active", "3", "--spares", "0"], "16 x 16"),
        (["--active", "8", "--spares", "1"], "this process has 8"),
        (["--active", "100000", "--spares", "1"], "100001"),
        (["--active", "1", "--spares", "100"], "101"),
    ],
)
def test_an_impossible_mesh_is_refused_before_anything_is_written(flags, names, folder, capfd):
    assert names in refused(capfd, folder, "run", "job.toml", "--out", "out", *flags)
    assert names in refused(capfd, folder, "plan", "job.toml", *flags)


def test_reports_that_cannot_be_written_are_refused_before_the_work(folder, capfd):
    (folder / "file").write_text("precious")
    (folder / "dir").mkdir()
    for target in ("file/x.json", "nowhere/x.json", "dir", "."):
        assert "cannot be written" in refused(capfd, folder, "run", "job.toml", "--out", "out", "--json", target)
        for command in (["plan", "job.toml"], ["doctor"], ["status", "file"], ["demo", "--out", "out"]):
            refused(capfd, folder, *command, "--json", target)


def test_an_output_directory_that_cannot_be_made_is_refused(folder, capfd):
    (folder / "file").write_text("precious")
    for out in ("file", "file/out"):
        assert "file" in refused(capfd, folder, "run", "job.toml", "--out", out)
        assert "file" in refused(capfd, folder, "demo", "--out", out)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(folder, capfd):
    (folder / "locked").mkdir(mode=0o500)
    refused(capfd, folder, "run", "job.toml", "--out", "locked")
    refused(capfd, folder, "doctor", "--json", "locked/x.json")


def test_json_alone_goes_to_standard_output(folder, capfd):
    with Journal("run.db") as journal:
        journal.append(RunStarted("burgers2d", 0, (0, 1), (2,)))
    for command, key in ((["doctor"], "backend"), (["status", "run.db"], "registry")):
        assert run_command([*command, "--json", "-"]) == 0
        out, err = capfd.readouterr()
        assert key in json.loads(out)
        assert err, "the words for people go to standard error then"
        assert run_command([*command, "--json", "said.json"]) == 0
        assert key in json.loads((folder / "said.json").read_text())
        assert capfd.readouterr().out, "and to standard output otherwise"
    assert not list(folder.glob("*.part"))


# -- initial states ---------------------------------------------------------------------------------------------------


def field(n: int = 16, **change: float) -> np.ndarray:
    uv = np.full((2, n, n), 0.5, np.float32)
    for value in change.values():
        uv[1, 2, 3] = value
    return uv


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def initial_files(folder: Path) -> dict[str, str]:
    """File names with what the sentence must name."""
    np.save(folder / "shape.npy", field(8))
    np.save(folder / "rank.npy", field()[0])
    np.save(folder / "nan.npy", field(x=np.nan))
    np.save(folder / "inf.npy", field(x=np.inf))
    np.save(folder / "huge.npy", field(x=2e6))
    np.save(folder / "beyond32.npy", np.full((2, 16, 16), 1e300))
    np.save(folder / "complex.npy", field().astype(complex))
    np.save(folder / "text.npy", np.full((2, 16, 16), "a"))
    np.save(folder / "object.npy", np.full((2, 16, 16), None), allow_pickle=True)
    np.save(folder / "cut.npy", field())
    cut(folder / "cut.npy")
    np.savez(folder / "cut.npz", uv=field())
    cut(folder / "cut.npz")
    np.savez(folder / "names.npz", a=field(), b=field())
    np.savez(folder / "uneven.npz", u=field()[0], v=field(8)[0])
    np.savez(folder / "nan.npz", u=field()[0], v=field(x=np.nan)[1])
    (folder / "empty.npy").touch()
    (folder / "text.npz").write_text("u v\n0 1\n")
    (folder / "dir.npy").mkdir()
    return {
        "shape.npy": "(2, 8, 8)", "rank.npy": "(16, 16)", "nan.npy": "NaN", "inf.npy": "infinite", "huge.npy": "limit",
        "beyond32.npy": "limit", "complex.npy": "complex", "text.npy": "real", "object.npy": "plain numbers",
        "cut.npy": "cut.npy", "cut.npz": "cut.npz", "names.npz": "accepted are uv", "uneven.npz": "uneven.npz",
        "nan.npz": "NaN", "empty.npy": "empty.npy", "text.npz": "text.npz", "dir.npy": "dir.npy",
        "missing.npy": "missing.npy",
    }  # fmt: skip


def test_bad_initial_states_are_refused(folder, capfd):
    for name, word in initial_files(folder).items():
        (folder / "start.toml").write_text(GOOD_JOB.replace("n = 16", f'n = 16\ninitial = "{name}"'))
        assert word in refused(capfd, folder, "run", "start.toml", "--out", "out"), name


def test_good_initial_states_are_accepted_in_every_form(tmp_path):
    uv = np.random.default_rng(0).random((2, 16, 16))
    np.save(tmp_path / "a.npy", uv)
    np.savez(tmp_path / "b.npz", uv=uv)
    np.savez_compressed(tmp_path / "c.npz", u=uv[0], v=uv[1])
    for name in ("a.npy", "b.npz", "c.npz"):
        assert np.array_equal(load_field(tmp_path / name), uv)


# -- fault scripts ----------------------------------------------------------------------------------------------------

NAN = '[[fault]]\nkind = "nan"\nstep = 1\n'
FLIP = '[[fault]]\nkind = "bitflip"\nstep = 1\n'
BAD_SCRIPTS = {
    "no TOML": ("[[fault]", "not valid TOML"),
    "not UTF-8": (b"# \xff", "not valid TOML"),
    "unknown table": ("[fire]\nstep = 1", "fire"),
    "one table": ('[fault]\nkind = "nan"\nstep = 1', "[[fault]]"),
    "list of numbers": ("fault = [1, 2]", "[[fault]]"),
    "no kind": ("[[fault]]\nstep = 1", "no 'kind'"),
    "no step": ('[[fault]]\nkind = "nan"', "no 'step'"),
    "unknown kind": ('[[fault]]\nkind = "gremlin"\nstep = 1', "gremlin"),
    "unknown key": (NAN + "stepp = 2", "stepp"),
    "step of a wrong type": ('[[fault]]\nkind = "nan"\nstep = 1.0', "step must be int"),
    "truth for a slot": (NAN + "slot = true", "slot must be int"),
    "negative step": ('[[fault]]\nkind = "nan"\nstep = -1', "negative"),
    "negative slot": (NAN + "slot = -1", "negative"),
    "slot that is none": (NAN + "slot = 2", "the slots are 0 to 1"),
    "slot that is none, lost": ('[[fault]]\nkind = "lost"\nstep = 1\nslot = 9', "the slots are 0 to 1"),
    "step behind the end": ('[[fault]]\nkind = "nan"\nstep = 100000', "100000"),
    "unknown leaf of the batch": (NAN + 'leaf = "uv"', "no leaf 'uv'"),
    "unknown leaf of the state": (FLIP + 'leaf = "forcing"', "no leaf 'forcing'"),
    "unknown place": (FLIP + 'where = "attic"', "attic"),
    "unknown extent": (FLIP + 'extent = "galaxy"', "galaxy"),
    "unknown origin": (NAN + 'origin = "sky"', "sky"),
    "persistent flip": (FLIP + "persistent = true", "persistent"),
}


@pytest.mark.parametrize("kind", BAD_SCRIPTS)
def test_a_bad_fault_script_is_refused_before_the_run(kind, folder, capfd):
    text, names = BAD_SCRIPTS[kind]
    (folder / "faults.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert names in refused(capfd, folder, "run", "job.toml", "--faults", "faults.toml", "--out", "out")


@pytest.mark.parametrize("script", ["missing.toml", ".", "job.toml", "burgers2d", "gremlins"])
def test_a_fault_script_that_is_none_is_refused(script, folder, capfd):
    refused(capfd, folder, "run", "job.toml", "--faults", script, "--out", "out")


# -- journals and snapshots -------------------------------------------------------------------------------------------


def test_a_journal_that_is_none_is_refused_and_left_alone(folder, capfd):
    (folder / "text.db").write_text("not a database, but long enough to look at " * 50)
    (folder / "empty.db").touch()
    db = sqlite3.connect(folder / "other.db")
    with db:
        db.execute("CREATE TABLE photos (id INTEGER)")
    db.close()
    for name in ("text.db", "empty.db", "other.db", "missing.db", "."):
        assert "journal" in refused(capfd, folder, "status", name)


def snapshot(folder: Path, **change: object) -> Path:
    """A snapshot file as a run of `job.toml` writes it, changed."""
    meta = {
        "version": 1, "job": "burgers2d", "step": 3, "devices": 2, "fingerprint": "0" * 32,
        "leaves": [{"name": "uv", "dtype": "float32", "shape": [2, 16, 16]}], **change,
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    path = folder / "snapshot-000000003.npz"
    np.savez(path, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), leaf0=np.zeros(2048, np.uint8))
    return path


# numpy leaves the file open when a zip is broken; the keeper's reader still opens by path.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_resume_from_nothing_good_is_refused_before_the_run(folder, capfd):
    (folder / "nothing").mkdir()
    (folder / "text").mkdir()
    (folder / "text" / "snapshot-000000003.npz").write_text("no zip")
    cut(snapshot(folder / "cut"))
    snapshot(folder / "print")
    snapshot(folder / "job", job="heat3d")
    snapshot(folder / "shape", leaves=[{"name": "uv", "dtype": "float32", "shape": [2, 8, 8]}])
    snapshot(folder / "version", version=99)
    snapshot(folder / "many", devices=100)
    for name in ("missing", "job.toml", "nothing", "text", "cut", "print", "job", "shape", "version", "many"):
        refused(capfd, folder, "run", "job.toml", "--resume", name, "--out", "out")


# -- fuzz: whatever a file says, parsing raises BadInput or succeeds --------------------------------------------------

KEYS = st.sampled_from(
    ["workload", "params", "devices", "keeper", "policy", "active", "spares", "depth", "every", "source", "fused",
     "tries", "n", "nu", "initial", "fault", "kind", "step", "slot", "where", "extent", "leaf", "origin", "persistent"]
) | st.text(string.ascii_letters, min_size=1, max_size=4)  # fmt: skip
SCALARS = (
    st.integers(-(2**63), 2**63 - 1)
    | st.integers(-2, 20)
    | st.floats()
    | st.booleans()
    | st.sampled_from([*KINDS, "burgers2d", "auto", "data", "marks", "bank", "device", "", "a:b"])
    | st.text(string.printable, max_size=5)
)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=4), max_leaves=8)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=5)


def toml(value: object) -> str:
    """A value as TOML writes it inline."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007F")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return repr(value)


def document(data: dict[str, object]) -> str:
    return "".join(f"{json.dumps(k)} = {toml(v)}\n" for k, v in data.items())


FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(DOCUMENTS)
def test_any_toml_as_a_job_is_a_job_or_bad_input(folder, data):
    path = folder / "fuzz.toml"
    path.write_text(document(data))
    tomllib.loads(path.read_text())
    try:
        job = load_job(str(path))
        if job.workload == "burgers2d" and not job.params:
            job.make()
    except BadInput:
        return
    assert isinstance(job.workload, str)


@FUZZ
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_as_a_job_or_a_script_are_bad_input_or_fine(folder, content):
    path = folder / "fuzz.toml"
    path.write_bytes(content)
    for load in (load_job, lambda p: load_script(Path(p))):
        with contextlib.suppress(BadInput):
            load(str(path))


FAULT_TABLES = st.fixed_dictionaries(
    {"kind": st.sampled_from(KINDS) | SCALARS, "step": st.integers(-1, 30) | SCALARS},
    optional={
        "slot": st.integers(-1, 3) | SCALARS, "where": st.sampled_from(["data", "tag"]) | SCALARS, "leaf": SCALARS,
        "extent": st.sampled_from(["bit", "bank"]) | SCALARS, "persistent": st.booleans() | SCALARS, "x": SCALARS,
    },
)  # fmt: skip


@FUZZ
@given(st.dictionaries(st.just("fault"), st.lists(FAULT_TABLES | VALUES, max_size=3)) | DOCUMENTS)
def test_any_table_as_a_fault_script_is_a_script_or_bad_input(data):
    try:
        script = parse_script(data)
    except BadInput:
        return
    assert len(script) == len(data.get("fault", []))
    assert [f.step for f in script] == sorted(f.step for f in script)
    assert all(f.kind in KINDS and f.step >= 0 and f.slot >= 0 for f in script)
