"""Reads the CUDA kernels' machine code and checks what their speed rests on; for CI, no GPU needed.

    python native/check_sass.py                      # compiles native/cuda/*.cu for sm_90 first (a minute or two)
    python native/check_sass.py libpoise_cuda.so     # what was built already

nvcc and cuobjdump come from the PyPI packages in native/requirements-sass.txt, else from PATH. For the loop that does
the work of each hot kernel: no local memory, no divergent branch, fused multiply-adds; 16-byte global accesses in the
kernel. Exit status 1 if a claim fails, 2 if there is no compiler.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

NATIVE = Path(__file__).parent


class Claim(NamedTuple):
    """What must hold of the first loop of a kernel that holds at least `fma` fused multiply-adds (its plain path)."""

    kernel: str
    fma: str
    least: int
    local: int = 0
    branches: int = 1


# In 2-D two steps, in 3-D two turns of the loop along z, at a time.
CLAIMS = [
    Claim(r"stencil2d_kernelIfLi16ELi4ELi1E", "FFMA", 512),
    Claim(r"stencil2d_kernelIfLi16ELi8ELi1E", "FFMA", 512),
    Claim(r"stencil2d_kernelIdLi8ELi4ELi1E", "DFMA", 256),
    Claim(r"stencil3d_kernelIfLi4E", "FFMA", 768, branches=3),
    Claim(r"stencil3d_walls_kernelIfLi3E", "FFMA", 144, branches=3),
    # T = 4 in float32 keeps two loop-invariant values in local memory.
    Claim(r"stencil3d_walls_kernelIfLi4E", "FFMA", 192, local=4, branches=3),
]
NO_LOCAL = [
    r"adamw_kernelILb0E",
    r"pack_kernel",
    r"record_kernel",
    r"gradient_kernel",
    r"burgers_kernelIf",
    r"burgers_sealed_kernel",
    r"scan_kernel",
]
WIDE = [c.kernel for c in CLAIMS] + [
    r"adamw_kernel",
    r"seal_kernel",
    r"scan_kernelIf",
    r"record_kernel",
    r"pack_kernel",
    r"gradient_kernel",
    r"burgers_sealed_kernel",
]


def functions(sass: str) -> dict[str, list[tuple[int, str]]]:
    """Address and text of every instruction, by kernel (the code of its subroutines included)."""
    out: dict[str, list[tuple[int, str]]] = {}
    for part in re.split(r"\n\s*Function : ", sass)[1:]:
        name, _, body = part.partition("\n")
        lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", body)
        out.setdefault(name.strip(), [(int(a, 16), text) for a, text in lines])
    return out


def opcode(text: str) -> str:
    """The instruction's name without predicate and modifiers."""
    return re.sub(r"^@!?U?P\w+\s+", "", text).split()[0].split(".")[0]


def loops(code: list[tuple[int, str]]) -> list[list[str]]:
    """Bodies of the backward branches, innermost (shortest) first."""
    index = {a: i for i, (a, _) in enumerate(code)}
    found = []
    for i, (a, text) in enumerate(code):
        target = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
        if target and int(target[1], 16) <= a and int(target[1], 16) in index:
            found.append([t for _, t in code[index[int(target[1], 16)] : i + 1]])
    return sorted(found, key=len)


def package_folder(name: str) -> Path | None:
    """Where an installed package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def tool(name: str) -> str | None:
    """A program of the CUDA toolkit: from the PyPI packages, else from PATH."""
    nvidia = package_folder("nvidia")
    found = sorted(nvidia.glob(f"cu1*/bin/{name}")) if nvidia else []
    return str(found[-1]) if found else shutil.which(name)


def compiled(nvcc: str, into: Path) -> list[Path]:
    """Machine code for sm_90 of every CUDA source, two compilers side by side."""
    jaxlib = package_folder("jaxlib")
    if jaxlib is None:
        raise SystemExit("check_sass: jaxlib is not installed (its FFI headers are needed)")
    flags = ["-std=c++17", "-O3", "-arch=sm_90", "--extended-lambda", "-cubin"]
    include = [f"-I{NATIVE / 'include'}", "-isystem", str(jaxlib / "include")]

    def one(source: Path) -> Path:
        cubin = into / f"{source.stem}.cubin"
        done = subprocess.run(
            [nvcc, *flags, *include, str(source), "-o", str(cubin)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"check_sass: {source.name} does not compile:\n{done.stdout}{done.stderr}")
        return cubin

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, sorted((NATIVE / "cuda").glob("*.cu"), key=lambda p: "stencil" not in p.stem)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?")
    args = parser.parse_args()
    cuobjdump, nvcc = tool("cuobjdump"), tool("nvcc")
    if not cuobjdump or not (args.library or nvcc):
        print("check_sass: no nvcc and cuobjdump here (pip install -r native/requirements-sass.txt)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="poise-sass-") as folder:
        files = [Path(args.library)] if args.library else compiled(str(nvcc), Path(folder))
        dumps = [
            subprocess.run([cuobjdump, "--dump-sass", str(f)], capture_output=True, text=True, check=True).stdout
            for f in files
        ]
    sass = "\n".join(dumps)
    code = functions(sass)
    failures: list[str] = []

    def want(truth: bool, what: str) -> None:
        print(("ok    " if truth else "FAILS ") + what)
        if not truth:
            failures.append(what)

    for claim in CLAIMS:
        for name in [n for n in code if re.search(claim.kernel, n)]:
            bodies = [Counter(map(opcode, body)) for body in loops(code[name])]
            hot = next((b for b in bodies if b[claim.fma] >= claim.least), Counter())
            local, branches = hot["LDL"] + hot["STL"], hot["BRA"]
            want(hot[claim.fma] >= claim.least, f"{claim.kernel}: {hot[claim.fma]} {claim.fma} in its loop")
            want(local <= claim.local, f"{claim.kernel}: {local} local-memory accesses in its loop")
            want(branches <= claim.branches, f"{claim.kernel}: {branches} branches in its loop")
    for kernel in NO_LOCAL:
        for name in [n for n in code if re.search(kernel, n)]:
            body = max(loops(code[name]) or [[t for _, t in code[name]]], key=len)
            bad = [t for t in body if opcode(t) in ("LDL", "STL")]
            want(not bad, f"{kernel}: {len(bad)} local-memory accesses in its main loop")
    for kernel in WIDE:
        for name in [n for n in code if re.search(kernel, n)]:
            wide = sum(bool(re.search(r"\b(LDG|STG|LDGSTS)\b.*\.128", t)) for _, t in code[name])
            want(wide > 0, f"{kernel}: {wide} 16-byte global accesses")
    for kernel in {c.kernel for c in CLAIMS} | set(NO_LOCAL) | set(WIDE):
        if not any(re.search(kernel, n) for n in code):
            want(False, f"{kernel}: not found")
    print(f"check_sass: {len(failures)} of its claims fail")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
