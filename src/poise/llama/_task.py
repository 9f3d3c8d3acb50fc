"""What training and forward-only learning have in common: the model, its start, its text, its mesh, its loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ..errors import BadInput, BadMesh
from ..gate import Gate
from ..keeper import Traits
from ._abft import Checked
from ._checkpoint import load
from ._config import SHAPES, Config, Rope, load_config
from ._lora import lora_shapes, lora_specs, lora_start
from ._model import Product, Remat, Seen, cross_entropy, head, hidden, plain_scores
from ._names import DENSE, shapes, specs
from ._rules import Blow, Item, items, rules_for
from ._text import Text, Tokens, documents, tokenizer

AXES = ("data", "fsdp", "tensor")
ROWS = ("data", "fsdp")
"""Mesh axes over which sequences are spread."""


@dataclass(frozen=True)
class Task:
    """A job's numbers, as `docs/llama.md` explains them. Raises `BadInput` for what cannot be.

    - `model`: a published shape ("llama3.2-1b"), a checkpoint's folder, or a table of `Config`'s sizes.
    - `data`: "stdlib", a path, or a list of paths. `tokens`: "bytes" or a tokenizer's path.
    - `sequences` of `length` tokens a step, in `accumulate` parts.
    - `dtype`: of the products. `remat`: what the backward pass computes again. `chunk`: positions whose scores exist
      at once.
    - `tensor`, `data_axis`: devices that share heads, and that hold copies of everything; the rest share parameters.
    - `abft`: "off", "audit" (every `period`-th layer, another one each step) or "all". `limit`: of the residual stream.
    - `lora`: rank of low-rank additions that alone are trained, 0 for the weights themselves.
    - `strikes`: whether scripted arithmetic faults can strike (they need a place in the program).
    """

    model: str | dict[str, Any]
    data: str | list[str] = "stdlib"
    tokens: str = "bytes"
    characters: int = 1_000_000
    steps: int = 100
    sequences: int = 8
    length: int = 128
    accumulate: int = 1
    dtype: str = "bfloat16"
    remat: Remat = "none"
    chunk: int = 0
    tensor: int = 1
    data_axis: int = 1
    abft: str = "off"
    period: int = 8
    limit: float = 1e6
    lora: int = 0
    held: int = 8
    seed: int = 0
    strikes: bool = False

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "sequences",
            "length",
            "accumulate",
            "tensor",
            "data_axis",
            "period",
            "held",
            "characters",
        ):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise BadInput(f"llama's {name} is a positive whole number, not {value!r}.")
        for name, accepted in (
            ("dtype", ("bfloat16", "float32")), ("remat", ("none", "dots", "full")), ("abft", ("off", "audit", "all"))
        ):  # fmt: skip
            if getattr(self, name) not in accepted:
                raise BadInput(f"llama's {name} is {', '.join(accepted)}, not {getattr(self, name)!r}.")
        if self.sequences % self.accumulate:
            raise BadInput(f"A batch of {self.sequences} sequences cannot be cut into {self.accumulate} equal parts.")
        if self.chunk and self.length % self.chunk:
            raise BadInput(f"A sequence of {self.length} tokens cannot be cut into chunks of {self.chunk}.")
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise BadInput(f"llama's seed is a whole number from 0 to {2**32 - 1}, not {self.seed!r}.")
        if type(self.lora) is not int or self.lora < 0:
            raise BadInput(f"llama's lora is a rank, 0 or more, not {self.lora!r}.")
        if self.length > self.config.max_position:
            raise BadInput(f"{self.length} tokens are more than this model's {self.config.max_position} positions.")
        if self.text_tokens.size > self.config.vocab:
            raise BadInput(
                f"The tokenizer has {self.text_tokens.size} tokens, the model {self.config.vocab}; they do not fit."
            )

    @property
    def directory(self) -> Path | None:
        """The checkpoint to start from, if the model is one."""
        return Path(self.model) if isinstance(self.model, str) and self.model not in SHAPES else None

    @cached_property
    def config(self) -> Config:
        """The model's shape."""
        if isinstance(self.model, dict):
            sizes: dict[str, Any] = {"max_position": max(self.length, 8192)} | self.model
            width, heads = sizes.get("width"), sizes.get("heads")
            if "head" not in sizes and isinstance(width, int) and isinstance(heads, int) and heads > 0:
                sizes["head"] = width // heads
            sizes.setdefault("kv_heads", heads)
            try:
                if isinstance(sizes.get("rope"), dict):
                    sizes["rope"] = Rope(**sizes["rope"])
                return Config(**sizes)
            except TypeError as error:
                said = str(error).removeprefix("Config.__init__() ").removeprefix("Rope.__init__() ")
                raise BadInput(f"llama's model table: {said}.") from error
        if self.model in SHAPES:
            return SHAPES[self.model]
        if not Path(self.model).is_dir():
            raise BadInput(f"There is no model {self.model!r}; accepted are {', '.join(SHAPES)}, a "
                           "checkpoint's folder, or a table of sizes.")  # fmt: skip
        return load_config(self.model)

    @cached_property
    def text_tokens(self) -> Tokens:
        """What turns the text into tokens."""
        return tokenizer(self.tokens)

    @cached_property
    def text(self) -> Text:
        """The packed text."""
        found = documents(self.data, self.characters)
        return Text.of(found, self.text_tokens, self.length, held=self.held, seed=self.seed)

    # -- the mesh ---------------------------------------------------------------------------------------------------

    def axes(self, n: int) -> dict[str, int]:
        """`n` devices as copies x shares x heads. Raises `BadMesh` if they do not fit the job."""
        if n % (self.tensor * self.data_axis):
            raise BadMesh(f"{n} devices cannot be {self.data_axis} copies of {self.tensor} that share heads; accepted "
                          f"are multiples of {self.tensor * self.data_axis}.")  # fmt: skip
        fsdp = n // (self.tensor * self.data_axis)
        part = self.sequences // self.accumulate
        if part % (fsdp * self.data_axis):
            raise BadMesh(f"{part} sequences at a time cannot be spread over {fsdp * self.data_axis} devices equally.")
        if self.config.kv_heads % self.tensor:
            raise BadMesh(f"{self.config.kv_heads} key/value heads cannot be cut over {self.tensor} devices.")
        return {"data": self.data_axis, "fsdp": fsdp, "tensor": self.tensor}

    @property
    def weight_specs(self) -> dict[str, Any]:
        """How the weights are cut."""
        return specs(self.config)

    @property
    def traits(self) -> Traits:
        """The state is updated in place; a batch may be left out."""
        return Traits(gate=Gate(limit=1e6), limit=None, in_place=True, droppable=True)

    @property
    def trained_specs(self) -> dict[str, Any]:
        """How what is trained is cut."""
        return lora_specs() if self.lora else self.weight_specs

    # -- the start ----------------------------------------------------------------------------------------------------

    def start(self, dtype: Any) -> dict[str, Any]:
        """Weights of step 0: the checkpoint's, or normal with deviation 0.02 (residual outputs by 1 / sqrt(2 layers)
        less), in host memory."""
        kind = jnp.dtype(dtype)
        if self.directory is not None:
            params, _ = load(self.directory, dtype=kind)
            return jax.tree.map(np.asarray, params)
        rng = np.random.default_rng(self.seed)
        tree = shapes(self.config)

        def drawn(path: Any, shape: tuple[int, ...]) -> np.ndarray:
            name = path[-1].key
            if name.endswith("norm"):
                return np.ones(shape, kind)
            scale = 0.02 / (2 * self.config.layers) ** 0.5 if name in ("o", "down") else 0.02
            return (rng.standard_normal(shape, np.float32) * np.float32(scale)).astype(kind)

        return jax.tree.map_with_path(drawn, tree, is_leaf=lambda x: isinstance(x, tuple))

    def lora_start(self, dtype: Any) -> dict[str, Any]:
        """Low-rank additions of step 0: they add nothing yet."""
        return lora_start(lora_shapes(self.config, self.lora), self.seed, dtype)

    # -- batches ------------------------------------------------------------------------------------------------------

    def batch_of(self, index: int) -> dict[str, np.ndarray]:
        """Tokens (accumulate, part, length + 1), a weight for each sequence, the step's number, and a place for a
        scripted arithmetic fault where there may be one."""
        rows = self.text.rows(index, self.sequences).reshape(self.accumulate, -1, self.length + 1)
        out = {
            "tokens": np.ascontiguousarray(rows),
            "weight": np.ones(rows.shape[:2], np.float32),
            "step": np.int32(index),
        }
        if self.strikes:
            out["strike"] = np.array([-1, 0, 0, 0, 0, 0], np.int32)
        return out

    def batch_specs(self) -> dict[str, Any]:
        """Sequences are spread over the devices that do not share heads."""
        out: dict[str, Any] = {"tokens": P(None, ROWS), "weight": P(None, ROWS), "step": P()}
        return out | ({"strike": P()} if self.strikes else {})

    # -- the loss -----------------------------------------------------------------------------------------------------

    def mean_loss(
        self, mesh: Mesh | None, params: dict[str, Any], tokens: Array, weight: Array, total: Array, *, step: Array,
        probe: Any = None, blow: Blow | None = None, change: Any = None, differentiable: bool = True,
    ) -> tuple[Array, Seen]:  # fmt: skip
        """The sum of a part's losses over `total` weights, in nats, and what the guards saw by sequence.

        `change(weights, layer)` alters a layer's weights as they are used. `probe`: as `_abft.Probe`, stacked over
        layers and one for the head."""
        sizes = dict(zip(mesh.axis_names, mesh.devices.shape, strict=True)) if mesh is not None else {}
        spread = sizes.get("data", 1) * sizes.get("fsdp", 1)
        rules = rules_for(sizes.get("tensor", 1), spread, self.remat == "full")
        rows, layers = tokens.shape[0], self.config.layers
        on = {"mode": self.abft, "period": self.period, "step": step, "blow": blow}
        each = items(layers, rows, probe=None if probe is None else probe[0], **on)
        last = items(1, rows, probe=None, **on)
        top = Item(
            None if last.on is None else last.on[0], jnp.int32(layers), None if probe is None else probe[1], blow
        )
        quiet = self.abft == "off"
        plain = quiet and blow is None

        def product(weights: dict[str, Array], item: Any) -> Product:
            weights = self._gathered(mesh, weights)
            if change is not None:
                weights = change(weights, item.layer)
            if plain:
                return Product(weights)
            mine = {k: r if not quiet else replace(r, check=False) for k, r in rules.items()}
            return Checked(weights, item, rules=mine, differentiable=differentiable)

        def scores(x: Array, table: Array) -> tuple[Array, Array]:
            if not differentiable and plain:
                return plain_scores(x, table)
            rule = rules["head"] if not quiet else replace(rules["head"], check=False)
            product = Checked({"head": table}, top, rules={"head": rule}, differentiable=differentiable)
            (made,) = product(("head",), x)
            made, failed = product.done(made)
            return made, failed.astype(jnp.float32)

        constrain = partial(_constrained, mesh, P(ROWS, None, None))
        x, seen = hidden(
            params, tokens[:, :-1], self.config, product=product, each=each, remat=self.remat, limit=self.limit,
            constrain=constrain,
        )  # fmt: skip
        table = head(params)
        loss, failed = cross_entropy(x, table, tokens[:, 1:], weight, self.chunk, scores)
        return loss / total, Seen(seen.bad.sum(0), seen.failed.sum(0) + failed.astype(jnp.int32))

    def _gathered(self, mesh: Mesh | None, weights: dict[str, Array]) -> dict[str, Array]:
        """A layer's weights as the devices need them for its products: whole but for the heads' axis."""
        if mesh is None or mesh.size == 1:
            return weights
        cut = {"q": 0, "k": 0, "v": 0, "gate": 0, "up": 0, "o": 1, "down": 1}
        out = {}
        for name, w in weights.items():
            spec: list[str | None] = [None] * w.ndim
            if name in cut:
                spec[cut[name]] = "tensor"
            out[name] = _constrained(mesh, P(*spec), w)
        return out

    def held_loss(self, params: dict[str, Any]) -> float:
        """Mean loss over the held-out sequences, nats per token."""
        rows = self.text.held
        part = min(len(rows), self.sequences)
        total = 0.0
        for i in range(0, len(rows) - part + 1, part):
            total += float(_evaluate(params, jnp.asarray(rows[i : i + part]), self.config))
        return total / (len(rows) // part)

    def strike(self, batch: Any, kind: str, slot: int, devices: int, rng: np.random.Generator) -> Any:
        """The batch with a scripted arithmetic fault on the device in `slot`: a "product" whose element has its top
        exponent bit flipped, in a forward product of one of that device's sequences; or a "gradient" of a weight that
        is NaN."""
        part = self.sequences // self.accumulate
        sequence = (slot // self.tensor) * part // (devices // self.tensor)
        row = sequence * self.length + int(rng.integers(self.length))
        layer, product = int(rng.integers(self.config.layers)), int(rng.integers(len(DENSE)))
        column, top = int(rng.integers(1 << 15)), 0x4000 if self.dtype == "bfloat16" else 0x40000000
        way, bits = (2, 0) if kind == "gradient" else (0, top)
        return {**batch, "strike": np.array([layer, product, way, row, column, bits], np.int32)}


def _constrained(mesh: Mesh | None, spec: P, x: Array) -> Array:
    if mesh is None or mesh.size == 1:
        return x
    return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


@partial(jax.jit, static_argnames="config")
def _evaluate(params: dict[str, Any], tokens: Array, config: Config) -> Array:
    x, _ = hidden(params, tokens[:, :-1], config)
    total, _ = cross_entropy(x, head(params), tokens[:, 1:], jnp.ones(tokens.shape[0]), 0)
    return total / (tokens.shape[0] * (tokens.shape[1] - 1))
