"""`poise generate`: continue a text, kept."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ._output import check_json, console, write_json


def covered(abft: str) -> dict[str, Any]:
    """Which matrix products of a token are checked, and what is not covered."""
    if abft == "off":
        return {"mode": "off", "not_covered": "every matrix product"}
    missed = "attention's scores and sums, low-rank additions, errors below rounding"
    if abft == "audit":
        from ..llama._watched import PERIOD

        missed = f"with each token the layers whose number plus the token's is no multiple of {PERIOD}; {missed}"
    return {"mode": abft, "not_covered": missed}


def generate(
    directory: Path,
    prompt: str,
    tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    sweep: int,
    protect: bool,
    abft: str,
    dtype: str | None,
    json: str | None,
) -> int:
    """Print the text; the report says what was found and mended meanwhile."""
    check_json(json)
    if dtype not in (None, "bfloat16", "float32"):
        raise BadInput(f"The dtype is bfloat16 or float32, not {dtype!r}.")
    if abft not in ("off", "audit", "all"):
        raise BadInput(f"Products are checked with abft off, audit or all, not {abft!r}.")
    from .. import llama

    sampling = llama.Sampling(temperature, top_p, seed)
    t0 = time.perf_counter()
    params, config = llama.load(directory, dtype=dtype)
    if not (directory / "tokenizer.json").is_file() and config.vocab != 256:
        raise BadInput(f"There is no tokenizer.json in {directory}, and its {config.vocab} tokens are not bytes.")
    words = llama.tokenizer(directory if (directory / "tokenizer.json").is_file() else "bytes")
    numbers = words.encode(prompt)
    session = llama.Session(
        params, config, [numbers], tokens, sampling=sampling, protect=protect, sweep=sweep, abft=abft
    )
    t1 = time.perf_counter()
    (new,) = session.finish()
    seconds = time.perf_counter() - t1
    text = words.decode(new)
    report = session.report
    said: dict[str, Any] = {
        "text": text,
        "tokens": new,
        "prompt_tokens": len(numbers),
        "load_seconds": t1 - t0,
        "seconds": seconds,
        "tokens_per_second": len(session.written) / seconds,
        "spare_bytes": 0 if session.sealed is None else session.sealed.spare_bytes,
        "weights_found": report.weights_found,
        "cache_rows": report.cache_rows,
        "bad_values": report.bad_values,
        "rewound": report.rewound,
        "sweeps": report.sweeps,
        "products": {"failed": report.products} | covered(abft),
    }
    write_json(said, json)
    show = console(json)
    show.print(prompt + text, markup=False, highlight=False, soft_wrap=True)
    for sentence in report.notes:
        show.print(f"[yellow]mended:[/yellow] {sentence}", soft_wrap=True)
    return 0
