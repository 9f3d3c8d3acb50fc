"""What an operator needs: registry, policy, journal, and the keeper that puts them around the loop."""

from ._journal import Journal as Journal
from ._journal import read_journal as read_journal
from ._keep import keep as keep
from ._keeper import Keeper as Keeper
from ._policy import Limits as Limits
from ._policy import decide as decide
from ._read import Reader as Reader
from ._registry import Registry as Registry
from ._registry import State as State
from ._registry import apply as apply
from ._registry import replay as replay
from ._socket import Reporter as Reporter
