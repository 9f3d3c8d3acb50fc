"""One FFI call: the compiled kernel on the platforms that have it, the jnp twin elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array, lax

from . import _native

Spec = tuple[tuple[int, ...], Any]
"""Shape and dtype of a result."""


def _axes(x: Array) -> frozenset[str]:
    """The mesh axes over which `x` varies inside shard_map (the name of this moved between JAX 0.9 and 0.10)."""
    kind = jax.typeof(x)
    return kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying


def _result(shape: tuple[int, ...], dtype: Any, like: Array) -> jax.ShapeDtypeStruct:
    """A result that varies over the same mesh axes as `like`."""
    axes = _axes(like)
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    mesh = jax.typeof(like).sharding.mesh
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*[None] * len(shape)))
    if hasattr(jax.sharding, "ManualAxisType"):
        varying: dict[str, Any] = {"manual_axis_type": jax.sharding.ManualAxisType(varying=axes)}
    else:
        varying = {"vma": axes}
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, **varying)


def _alike(args: Sequence[Array]) -> list[Array]:
    """The arguments, made to vary over the same mesh axes."""
    axes = frozenset[str]().union(*(_axes(a) for a in args))
    return [lax.pcast(a, tuple(axes - _axes(a)), to="varying") if axes - _axes(a) else a for a in args]


def call(
    name: str,
    twin: Callable[..., Sequence[Array]],
    args: Sequence[Array],
    results: Sequence[Spec],
    aliases: dict[int, int] | None = None,
    on: frozenset[str] = frozenset({"cpu", "cuda"}),
    **attributes: Any,
) -> list[Array]:
    """The results of handler `name`, or of `twin(*args)` where there is no compiled kernel.

    `on` names the platforms that implement these arguments. In place where `aliases` says so (XLA copies if the input
    is still needed). Batched by vmap one after the other.
    """
    here = _native.platforms() & on
    if not here:
        return list(twin(*args))
    alike = _alike(args)

    def native(*operands: Array) -> list[Array]:
        specs = [_result(shape, dtype, alike[0]) for shape, dtype in results]
        made = jax.ffi.ffi_call(name, specs, vmap_method="sequential", input_output_aliases=aliases)
        return list(made(*operands, **attributes))

    # platform_dependent costs a branch in the program, so it is used only where a platform lacks the kernel.
    if here == {"cpu", "cuda"} or (here == {"cpu"} and jax.default_backend() == "cpu"):
        return native(*alike)
    return list(lax.platform_dependent(*alike, default=lambda *a: list(twin(*a)), **dict.fromkeys(here, native)))
