"""Checkpoints: safetensors in, memory-mapped and placed piece by piece; safetensors out, the same bytes.

On the host there is never more than what is being placed: two weights of a layer, or one device's part of the
embedding."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ..errors import BadInput, need
from ..keeper._form import shard_shape
from ._config import Config, dump_config, load_config
from ._names import names, place_of, shapes, specs

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD_BYTES = 5 << 30
"""Size of a file of a sharded checkpoint."""

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}  # fmt: skip
_CODES = {v: k for k, v in DTYPES.items()}


def load(
    directory: str | Path, *, mesh: Mesh | None = None, dtype: Any = None, device: Any = None
) -> tuple[dict[str, Any], Config]:
    """The parameters (`_names`) and the configuration in `directory`, on `mesh` (axes `fsdp`, `tensor`), or on one
    device.

    `dtype` left out: as stored. Raises `BadInput` for weights that are missing, unknown, of a wrong shape, or damaged,
    and `BadMesh` where the mesh does not divide a weight."""
    config = load_config(directory)
    where = _files(Path(directory))
    wanted = names(config)
    missing = [n for n in wanted if n not in where]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadInput(f"The checkpoint {directory} lacks {missing[0]}{more}.")
    for name in where:
        if name not in wanted and not _aside(name, config):
            place_of(name, config)
    params: dict[str, Any] = {"layers": {}}
    layouts = specs(config)
    with ExitStack() as stack:
        opened: dict[Path, Any] = {}

        def piece(name: str) -> Any:
            path = where[name]
            if path not in opened:
                opened[path] = stack.enter_context(_open(path))
            return opened[path].get_slice(name)

        for group in _groups(config):
            path = wanted[group[0]].path
            leaf = path[-1]
            shape, spec = _at(shapes(config), path), _at(layouts, path)
            if mesh is not None:
                shard_shape(group[0], shape, spec, dict(mesh.shape))
            stored = _checked(group, shape[1:] if len(path) > 1 else shape, piece)
            kind = jnp.dtype(stored if dtype is None else dtype)
            if len(path) == 1:
                params[leaf] = _placed(shape, _sharding(mesh, spec, device), kind, piece(group[0]))
            else:
                params["layers"][leaf] = _stacked(shape, spec, mesh, device, kind, group, piece)
    return params, config


def save(
    params: dict[str, Any], config: Config, directory: str | Path, *, like: str | Path | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:  # fmt: skip
    """Write a checkpoint that `load`, and Hugging Face's libraries, read.

    `like` names the checkpoint that the parameters came from: the same files with the same headers, everything else in
    it copied; parameters that did not change give the same bytes. Each file appears whole or not at all, the index
    last."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    places = names(config)

    def tensor(name: str) -> np.ndarray:
        place = places[name]
        leaf = _at(params, place.path)
        return np.asarray(leaf if place.layer is None else _layer(leaf, place.layer))

    if like is not None:
        _save_like(tensor, places, Path(like), directory)
        return
    sized = {
        n: (_at(shapes(config), p.path)[p.layer is not None :], _at(params, p.path).dtype) for n, p in places.items()
    }
    files: list[list[str]] = [[]]
    size = 0
    for name, (shape, kind) in sized.items():
        nbytes = int(np.prod(shape)) * kind.itemsize
        if files[-1] and size + nbytes > shard_bytes:
            files.append([])
            size = 0
        files[-1].append(name)
        size += nbytes
    weight_map: dict[str, str] = {}
    total = 0
    for number, group in enumerate(files, 1):
        file = SINGLE if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for name in group:
            shape, kind = sized[name]
            end = at + int(np.prod(shape)) * kind.itemsize
            header[name] = {"dtype": _CODES[kind.name], "shape": list(shape), "data_offsets": [at, end]}
            at = end
            weight_map[name] = file
        total += at
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        _write(directory / file, text, (tensor(n) for n in group))
    if len(files) > 1:
        _replace(directory / INDEX, json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2))
    kind = params["embed"].dtype
    _replace(directory / "config.json", json.dumps(dump_config(config, kind), indent=2) + "\n")


def _save_like(tensor: Callable[[str], np.ndarray], places: Any, like: Path, directory: Path) -> None:
    if like.resolve() == directory.resolve():
        raise BadInput(f"A checkpoint cannot be saved over the one that it is like, {like}.")
    where = _files(like)
    for path in sorted(set(where.values())):
        text, header = _header(path)
        base = 8 + len(text)

        def data(name: str, path: Path = path, base: int = base, header: Any = header) -> np.ndarray:
            if name in places:
                made = tensor(name)
                if _CODES.get(made.dtype.name) != header[name]["dtype"]:
                    raise BadInput(f"{name} is {made.dtype} now; saving like {like} needs {header[name]['dtype']}.")
                return made
            begin, end = header[name]["data_offsets"]
            return np.fromfile(path, np.uint8, end - begin, offset=base + begin)

        order = sorted((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])
        _write(directory / path.name, text, (data(n) for n in order))
    for path in like.iterdir():
        if path.is_file() and path not in set(where.values()):
            shutil.copyfile(path, directory / path.name)


def _groups(config: Config) -> Iterator[list[str]]:
    """The names that make one leaf of the parameters, in order of layers."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, place in names(config).items():
        groups.setdefault(place.path, []).append(name)
    yield from groups.values()


def _checked(group: list[str], shape: tuple[int, ...], piece: Callable[[str], Any]) -> str:
    kinds = set()
    for name in group:
        found = piece(name)
        got, code = tuple(found.get_shape()), found.get_dtype()
        if got != shape:
            raise BadInput(f"The checkpoint's {name} has shape {list(got)}; the configuration says {list(shape)}.")
        if code not in DTYPES:
            raise BadInput(f"The checkpoint's {name} holds {code}; accepted are {', '.join(DTYPES)}.")
        kinds.add(DTYPES[code])
    if len(kinds) > 1:
        raise BadInput(f"The layers of {group[0]} are stored as {', '.join(sorted(kinds))}; one kind is accepted.")
    return kinds.pop()


def _stacked(
    shape: tuple[int, ...], spec: PartitionSpec, mesh: Mesh | None, device: Any, dtype: Any, group: list[str],
    piece: Callable[[str], Any],
) -> Array:  # fmt: skip
    """A stack over layers, filled in place one layer after the other; the next one is read meanwhile."""
    whole = _sharding(mesh, spec, device)
    one = _sharding(mesh, PartitionSpec(*spec[1:]), device)
    out = jax.jit(partial(jnp.zeros, shape, dtype), out_shardings=whole)()
    put = jax.jit(lambda buf, x, i: lax.dynamic_update_index_in_dim(buf, x, i, 0), donate_argnums=0)
    with ThreadPoolExecutor(1) as reader:
        read = [partial(_placed, shape[1:], one, dtype, piece(name)) for name in group]
        ahead = reader.submit(read[0])
        for i in range(len(group)):
            layer = ahead.result()
            if i + 1 < len(group):
                ahead = reader.submit(read[i + 1])
            out = put(out, layer, np.int32(i))
            out.block_until_ready()  # or the reader would run ahead and fill the host
    return out


def _placed(shape: tuple[int, ...], sharding: Any, dtype: Any, stored: Any) -> Array:
    return jax.make_array_from_callback(
        shape, sharding, lambda index: np.asarray(stored[index]).astype(dtype, copy=False)
    )


def _sharding(mesh: Mesh | None, spec: PartitionSpec, device: Any) -> Any:
    if mesh is None:
        return SingleDeviceSharding(jax.devices()[0] if device is None else device)
    return NamedSharding(mesh, spec)


@jax.jit
def _layer(leaf: Array, i: Any) -> Array:
    return lax.dynamic_index_in_dim(leaf, i, 0, keepdims=False)


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _aside(name: str, config: Config) -> bool:
    """Tensors that old checkpoints carry and nobody needs; a tied head that is stored all the same."""
    return name.endswith("rotary_emb.inv_freq") or (config.tied and name == "lm_head.weight")


def _files(directory: Path) -> dict[str, Path]:
    """The file of each tensor."""
    index = directory / INDEX
    if index.is_file():
        try:
            listed = json.loads(index.read_text())["weight_map"]
            where = {str(n): directory / str(f) for n, f in listed.items()}
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise BadInput(f"The index {index} is not one of a safetensors checkpoint: {error!r}.") from error
        lost = sorted({p.name for p in where.values() if not p.is_file()})
        if lost:
            raise BadInput(f"The checkpoint {directory} lacks the file {lost[0]} of its index.")
        return where
    single = directory / SINGLE
    if not single.is_file():
        raise BadInput(f"There is no checkpoint in {directory}; accepted is a folder with {SINGLE} or {INDEX}.")
    with _open(single) as file:
        return dict.fromkeys(file.keys(), single)


def _open(path: Path) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise need("safetensors", "llama") from error
    try:
        return safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise BadInput(f"The checkpoint file {path} is damaged or no safetensors: {error}.") from error


def _header(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The header's bytes, and what they say."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        text = file.read(size)
    return text, json.loads(text)


def _write(path: Path, header: bytes, tensors: Iterator[np.ndarray]) -> None:
    """A safetensors file, tensor after tensor. (The library's own writer wants all of them in memory at once.)"""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            for x in tensors:
                file.write(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)
        os.replace(part, path)
    except OSError as error:
        raise BadInput(f"The checkpoint file {path} cannot be written: {error.strerror}.") from error
    finally:
        part.unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text)
    os.replace(part, path)
