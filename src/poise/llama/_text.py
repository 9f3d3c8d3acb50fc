"""Text as numbered batches: files in, tokens packed into sequences, the same batch whenever a step is asked for."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np

from ..errors import BadInput, need


class Tokens(Protocol):
    """What turns text into token numbers and back."""

    size: int

    def encode(self, text: str) -> list[int]:
        """Token numbers of `text`."""
        ...

    def decode(self, tokens: list[int]) -> str:
        """The text of token numbers."""
        ...


class Bytes:
    """A token per byte of UTF-8; 0 ends a document."""

    size = 256

    def encode(self, text: str) -> list[int]:
        """The bytes of `text`."""
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        """Text; bytes that are no UTF-8 become a replacement sign."""
        return bytes(t for t in tokens if t < 256).decode(errors="replace")


class File:
    """A `tokenizer.json`, through the library `tokenizers`."""

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise need("tokenizers", "llama") from error
        try:
            self._inner = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare exceptions for what it cannot read
            raise BadInput(f"The tokenizer {path} cannot be read: {error}.") from error
        self.size = self._inner.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Token numbers, with the marks that the tokenizer puts around a text."""
        return list(self._inner.encode(text).ids)

    def decode(self, tokens: list[int]) -> str:
        """Text without special tokens."""
        return self._inner.decode(tokens)


def tokenizer(where: str | Path) -> Tokens:
    """ "bytes", a `tokenizer.json`, or a folder that holds one (a model's). Raises `BadInput` where there is none."""
    if str(where) == "bytes":
        return Bytes()
    path = Path(where)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise BadInput(f"There is no tokenizer {str(where)!r}; accepted are 'bytes', a tokenizer.json or its folder.")
    return File(path)


def documents(where: str | list[str], limit: int) -> list[str]:
    """Texts of files, up to `limit` characters together: "stdlib" (the Python standard library's sources, on every
    machine), a file, a folder with text files, or a list of these."""
    out: list[str] = []
    left = limit
    for path in _paths(where):
        try:
            text = path.read_text(encoding="utf-8")[:left]
        except OSError as error:
            raise BadInput(f"The text {path} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError:
            continue  # a folder may hold pictures
        if text:
            out.append(text)
            left -= len(text)
        if left <= 0:
            break
    if not out:
        raise BadInput(f"There is no text in {where!r}.")
    return out


def _paths(where: str | list[str]) -> list[Path]:
    if isinstance(where, list):
        return [p for one in where for p in _paths(one)]
    if where == "stdlib":
        return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    path = Path(where)
    if path.is_dir():
        return sorted(p for p in path.rglob("*") if p.is_file())
    if not path.is_file():
        raise BadInput(f"There is no text {where!r}; accepted are 'stdlib', a file, a folder, or a list of these.")
    return [path]


@dataclass(frozen=True)
class Text:
    """Packed sequences of `length` + 1 tokens, the last of one being the first of the next: (n, length + 1) int32.

    `held` are sequences from the end of the text that no training step sees.
    """

    train: np.ndarray
    held: np.ndarray
    seed: int

    @staticmethod
    def of(texts: list[str], tokens: Tokens, length: int, *, held: int, seed: int) -> Text:
        """Pack `texts`, keeping `held` sequences aside. Raises `BadInput` for too little text."""
        flat: list[int] = []
        for text in texts:
            flat += [*tokens.encode(text), 0] if isinstance(tokens, Bytes) else tokens.encode(text)
        n = (len(flat) - 1) // length
        if n < held + 1:
            raise BadInput(f"{len(flat)} tokens make {n} sequences of {length}; {held + 1} at least are needed.")
        whole = np.asarray(flat[: n * length + 1], np.int32)
        rows = np.lib.stride_tricks.sliding_window_view(whole, length + 1)[::length]
        return Text(rows[: n - held], rows[n - held :], seed)

    def rows(self, step: int, size: int) -> np.ndarray:
        """The `size` sequences of a step. Every epoch is a new permutation, keyed by seed and epoch."""
        n = len(self.train)
        at = np.arange(step * size, (step + 1) * size)
        return np.stack([self.train[_order(self.seed, int(i // n), n)[i % n]] for i in at])


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, n: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(n)
