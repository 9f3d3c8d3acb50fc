"""Generation with its weights and its cache sealed: what is damaged is mended before it can reach the text.

Cache rows are verified whenever attention is about to read them. Weights are verified piece by piece between tokens, a
whole sweep every `sweep` tokens; where a sweep finds damage it is mended and the text goes back to the last token that
a clean sweep stands behind, so the text is that of a clean run. With `sweep=1` nothing damaged is ever read.

With `abft` the matrix products are checked too (`_watched`). A token whose products fail is computed again from the
cache before it; what fails again is first put down to the sums that are kept, then to the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadInput, Stopped
from ..seal import Sealed, SealReport, repair, scrub, seal
from ._cache import Cache, truncated
from ._config import Config
from ._decode import Sampling, Written, read, write
from ._rules import Blow
from ._watched import PERIOD, Audit, Side, sides_of

TRIES = 3
"""Tries of one token, before the weights or the device are to blame."""


@dataclass
class Report:
    """What happened while a text was written. `rewound` counts tokens that were written again, `products` tries of a
    token in which a matrix product failed its check."""

    weights_found: int = 0
    cache_rows: int = 0
    bad_values: int = 0
    products: int = 0
    rewound: int = 0
    sweeps: int = 0
    notes: list[str] = field(default_factory=list)


class Session:
    """A batch of sequences being continued, token by token. `sealed`, `cache` and `blow` are what faults strike.

    - `prompts`: lists of token numbers. `tokens`: how many to add at most; a sequence ends early at one of
      `config.eos`.
    - `protect`: seal weights and verify the cache. `sweep`: tokens per sweep over the weights.
    - `abft`: check the matrix products of no layer ("off"), of all ("all"), or of every eighth, others with each token
      ("audit"). The scores' product is checked with both.
    - `blow`: a scripted arithmetic fault, which strikes the next token once, or each time with `persistent`.

    Raises `BadInput` for prompts that are empty, too long, or hold numbers outside the vocabulary; `Stopped` for damage
    beyond repair."""

    def __init__(
        self,
        params: dict[str, Any],
        config: Config,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        *,
        sampling: Sampling | None = None,
        protect: bool = True,
        sweep: int = 1,
        abft: str = "off",
        limit: float = 1e6,
    ) -> None:
        _check(config, prompts, tokens, sweep, abft)
        self.config, self.limit, self.protect, self.sweep = config, limit, protect, sweep
        sampling = sampling or Sampling()
        # The seed is an argument of the program, the rest is part of it.
        self.sampling, self._seed = replace(sampling, seed=0), np.uint32(sampling.seed)
        self.sealed: Sealed | None = seal(params) if protect else None
        self._params = None if protect else params
        self.abft, self.persistent = abft, False
        self.blow: Blow | None = None
        self._sides: dict[str, Side] | None = None if abft == "off" else sides_of(params)
        self.lengths = np.array([len(p) for p in prompts], np.int32)
        width = int(self.lengths.max())
        self._prompt = np.zeros((len(prompts), width), np.int32)
        for row, prompt in zip(self._prompt, prompts, strict=True):
            row[: len(prompt)] = prompt
        self.wanted = tokens
        # On a CPU a matrix product reads a layer where it lies.
        self._alone = len(prompts) == 1 and jax.default_backend() != "cpu"
        self.written: list[np.ndarray] = []
        self.report = Report()
        self.cache: Cache | None = None
        self._confirmed = self._started = self._looked = self._restarts = 0
        self._walk: Iterator[SealReport] | None = None

    @property
    def params(self) -> Any:
        """The weights as they are read."""
        return self._params if self.sealed is None else self.sealed.data

    @property
    def done(self) -> bool:
        """Whether every sequence has ended."""
        return len(self.written) >= self.wanted or (bool(self.written) and not self._live().any())

    def texts(self) -> list[list[int]]:
        """The new tokens of each sequence, without the one that ended it."""
        out = []
        for b in range(len(self.lengths)):
            mine = [int(t[b]) for t in self.written]
            ends = [i for i, t in enumerate(mine) if t in self.config.eos]
            out.append(mine[: ends[0]] if ends else mine)
        return out

    def step(self) -> None:
        """One more token for every sequence, sweeping before it."""
        if self.sealed is not None:
            self._sweep(-(-len(self.sealed.groups) // self.sweep))
        for tries in range(1, TRIES + 1):
            made = self._write()
            if int(made.found.lost):
                # Two rows of one group: what the prompt and the text say makes the whole cache again, bit for bit.
                self.report.notes.append(f"{int(made.found.lost)} cache rows beyond parity: text written again")
                self._restarts += 1
                if self._restarts > TRIES:
                    raise Stopped(f"The cache was damaged beyond parity {self._restarts} times; its memory is bad.")
                self._rewind(0)
                return
            self.report.cache_rows += int(made.found.mended)
            bad, failed = int(made.bad), np.flatnonzero(np.asarray(made.failed))
            if not bad and not failed.size:
                self.written.append(np.asarray(made.token))
                return
            self.report.bad_values += bad
            self.report.products += failed.size > 0
            self._retry(tries, bad, failed)

    def _retry(self, tries: int, bad: int, failed: np.ndarray) -> None:
        """Back to before the token that came out wrong, with weights and cache as they should be."""
        at, where = len(self.written), _where(self.config, failed)
        if tries == TRIES and bad:
            raise Stopped(f"Token {at} has scores that are not finite in {TRIES} tries; the weights are to blame.")
        if tries == TRIES:
            blame = "the weights or this device are" if self.sealed is None else "the weights are sound, this device is"
            raise Stopped(f"Token {at}: {where} in each of {TRIES} tries; {blame} to blame.")
        if failed.size:
            self.report.notes.append(f"token {at} computed again: {where}")
        if self.sealed is not None:
            self._sweep(len(self.sealed.groups))
            if failed.size and tries > 1:
                # The weights are as their marks say; what is known of them may have rotted instead.
                self._sides = sides_of(self.params)
                self.report.notes.append("sums of the weights made again")
        self._rewind(len(self.written))

    def finish(self) -> list[list[int]]:
        """Write to the end and stand behind all of it; returns `texts()`."""
        while True:
            while not self.done:
                self.step()
            if self.sealed is None or self._confirm():
                return self.texts()

    def _live(self) -> np.ndarray:
        if not self.config.eos or not self.written:
            return np.ones(len(self.lengths), bool)
        return ~np.asarray(np.isin(np.stack(self.written), self.config.eos).any(0))

    def _write(self) -> Written:
        audit = None if self._sides is None else Audit(self._sides, jnp.int32(len(self.written)), self.blow)
        every = PERIOD if self.abft == "audit" else 1
        if not self.persistent:
            self.blow = None
        if self.cache is None:
            self.written.clear()
            self.cache, made = read(
                self.params, self._prompt, self.lengths, config=self.config, sampling=self.sampling, seed=self._seed,
                limit=self.limit, positions=int(self.lengths.max()) + self.wanted, audit=audit, every=every,
            )  # fmt: skip
            return made
        self.cache, made = write(
            self.params, self.cache, jnp.asarray(self.written[-1]), jnp.asarray(self._live()), config=self.config,
            sampling=self.sampling, seed=self._seed, limit=self.limit, check=self.protect, alone=self._alone,
            audit=audit, every=every,
        )  # fmt: skip
        return made

    def _sweep(self, pieces: int) -> None:
        for _ in range(pieces):
            assert self.sealed is not None
            if self._walk is None:
                self._walk, self._looked, self._started = scrub(self.sealed), 0, len(self.written)
            if not next(self._walk).ok:
                self._mend()
                return
            self._looked += 1
            if self._looked == len(self.sealed.groups):
                self._confirmed, self._walk = self._started, None
                self.report.sweeps += 1

    def _confirm(self) -> bool:
        """A whole sweep behind the last token; false if it found damage (and the text went back)."""
        assert self.sealed is not None
        for seen in scrub(self.sealed):
            if not seen.ok:
                self._mend()
                return False
        return True

    def _mend(self) -> None:
        assert self.sealed is not None
        self.sealed, found = repair(self.sealed)
        if not found.ok and found.unrepairable:
            raise Stopped(f"The weights are damaged beyond parity: {found}; load them again.")
        self.report.weights_found += 1
        self.report.notes.append(f"weights mended before token {len(self.written)}: {found}")
        self._walk = None
        self._rewind(self._confirmed)

    def _rewind(self, count: int) -> None:
        """Back to `count` new tokens. The cache then holds the prompt and all but the last of them."""
        self.report.rewound += len(self.written) - count
        del self.written[count:]
        if count == 0 or self.cache is None:
            self.cache = None
            return
        lengths = self.lengths.copy()
        for b in range(len(lengths)):
            ends = [i for i, t in enumerate(self.written) if int(t[b]) in self.config.eos]
            lengths[b] += min(count - 1, ends[0] if ends else count - 1)
        self.cache = truncated(self.cache, jnp.asarray(lengths))


def generate(
    params: dict[str, Any], config: Config, prompts: Sequence[Sequence[int]], tokens: int, **options: Any
) -> tuple[list[list[int]], Report]:
    """Continue `prompts` by up to `tokens` tokens each; options as `Session`. Returns the new tokens and the report."""
    session = Session(params, config, prompts, tokens, **options)
    return session.finish(), session.report


def _where(config: Config, failed: np.ndarray) -> str:
    layers = [str(i) for i in failed if i < config.layers]
    said = [f"of layer {', '.join(layers)}"] * bool(layers) + ["of the scores"] * (config.layers in failed)
    return f"matrix products {' and '.join(said)} failed their check"


def _check(config: Config, prompts: Sequence[Sequence[int]], tokens: int, sweep: int, abft: str) -> None:
    if abft not in ("off", "audit", "all"):
        raise BadInput(f"Products are checked with abft off, audit or all, not {abft!r}.")
    if not prompts or not all(len(p) for p in prompts):
        raise BadInput(
            "A prompt needs at least one token; begin with the model's first token if there is nothing to say."
        )
    bad = next((t for p in prompts for t in p if not 0 <= t < config.vocab), None)
    if bad is not None:
        raise BadInput(f"A prompt holds token {bad}; the vocabulary has tokens 0 to {config.vocab - 1}.")
    if tokens < 1 or sweep < 1:
        raise BadInput(f"The numbers of new tokens and of tokens per sweep are 1 or more, not {tokens} and {sweep}.")
    longest = max(len(p) for p in prompts) + tokens
    if longest > config.max_position:
        raise BadInput(f"{longest} positions are more than this model's {config.max_position}.")
