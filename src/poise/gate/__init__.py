"""Numbers: notice, contain, count and locate what must not spread."""

from ._gate import Gate as Gate
from ._health import Health as Health
