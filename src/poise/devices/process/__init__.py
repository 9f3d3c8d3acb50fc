"""Runs over several processes: seats, the launcher, deaths and verdicts, parity in a spare's memory."""

from ._cliques import Cliques as Cliques
from ._courier import Courier as Courier
from ._courier import Words as Words
from ._crew import INCARNATIONS as INCARNATIONS
from ._crew import Crew as Crew
from ._launcher import Launcher as Launcher
from ._launcher import Swap as Swap
from ._member import LEFT as LEFT
from ._member import Member as Member
from ._member import PeerLost as PeerLost
from ._orphan import die_with_parent as die_with_parent
from ._seat import Dropped as Dropped
from ._seat import find_cluster as find_cluster
from ._seat import join as join
from ._seat import learn_incarnations as learn_incarnations
from ._vault import Vault as Vault
from ._verdict import Beyond as Beyond
from ._verdict import Device as Device
from ._verdict import Report as Report
from ._verdict import Situation as Situation
from ._verdict import Verdict as Verdict
from ._verdict import judge as judge
from ._wire import listen as listen
