"""Llama kept: load, train, learn without backpropagation and generate, with faults contained.

`load` and `save` are for Hugging Face checkpoints, `logits` and `generate` run a model, `workload` is what a job keeps,
`replay` walks a forward-only run again."""

from ._adamw import AdamW as AdamW
from ._adapt import adapt as adapt
from ._checkpoint import load as load
from ._checkpoint import save as save
from ._checksum import wrong_rows as wrong_rows
from ._config import SHAPES as SHAPES
from ._config import Config as Config
from ._config import Rope as Rope
from ._config import dump_config as dump_config
from ._config import load_config as load_config
from ._config import parse_config as parse_config
from ._decode import Sampling as Sampling
from ._forward import Forward as Forward
from ._generate import Report as Report
from ._generate import Session as Session
from ._generate import generate as generate
from ._history import History as History
from ._history import read_history as read_history
from ._history import replay as replay
from ._history import replay_piece as replay_piece
from ._lora import with_lora as with_lora
from ._model import logits as logits
from ._names import place_of as place_of
from ._names import shape_of as shape_of
from ._names import specs as specs
from ._text import tokenizer as tokenizer
from ._workload import workload as workload
