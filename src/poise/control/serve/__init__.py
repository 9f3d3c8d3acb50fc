"""The status page, its metrics and its JSON, over a journal that it only reads."""

from ._app import Site as Site
from ._app import build as build
from ._server import serve as serve
