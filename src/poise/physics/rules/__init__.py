"""Forward-only relaxation over records: the curl inversion, nudging, and the gradient that fills a record.

from poise.memory import Subscriber
from poise.physics.rules import Follower, Nudge, burgers

with Subscriber("waves") as frames:
    g = frames.geometry
    follower = Follower(Nudge(burgers(nu=0.03, dx=g.dx, dy=g.dy, dt=g.dt)), g)
    for frame in frames:
        if follower.take(frame, frames.accept):
            follower.state.estimate, follower.failing()
"""

from ._curl import Curled as Curled
from ._curl import CurlInversion as CurlInversion
from ._curl import curl_inversion as curl_inversion
from ._curl import fixed_point as fixed_point
from ._follow import Follower as Follower
from ._follow import Report as Report
from ._follow import initial as initial
from ._follow import step_of as step_of
from ._gradient import fill_gradient as fill_gradient
from ._models import Model as Model
from ._models import advection_diffusion as advection_diffusion
from ._models import burgers as burgers
from ._models import persistence as persistence
from ._nudge import Nudge as Nudge
from ._nudge import NudgeState as NudgeState
from ._nudge import median as median
from ._sensors import AXES as AXES
from ._sensors import KINDS as KINDS
from ._sensors import Sensors as Sensors
from ._sensors import Watch as Watch
