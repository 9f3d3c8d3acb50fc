"""Scripted, counted faults: what strikes, where, at which step, and what became of it."""

from ._inject import Injector as Injector
from ._inject import Strike as Strike
from ._process import COORDINATOR as COORDINATOR
from ._process import ProcessFault as ProcessFault
from ._process import load_process_script as load_process_script
from ._script import ScriptedFault as ScriptedFault
from ._script import load_script as load_script
from ._script import parse_script as parse_script
