"""Forward-only physics: state a problem in symbols, solve it to high accuracy, know the error.

No reverse-mode differentiation anywhere: features have closed-form derivatives, expressions are linearised by their own
product rule, and memory does not grow with the number of points.

    from poise.physics import Box, Disc, Problem, lap, on, solve, union, unknown

    u = unknown("u", "x y")
    plate = Box(x=(-0.5, 0.5), y=(-0.5, 0.5), name="square")
    holes = union(*(Disc((a, b), 0.1) for a in (-0.3, 0.3) for b in (-0.3, 0.3)), name="circles")
    solution = solve(Problem(plate - holes, lap(u) == 0, [on("square", u == 1), on("circles", u == 0)]), tol=1e-6)
"""

from ._expr import Equation as Equation
from ._expr import Expr as Expr
from ._expr import Unknown as Unknown
from ._operators import axes as axes
from ._operators import cos as cos
from ._operators import cosh as cosh
from ._operators import div as div
from ._operators import exp as exp
from ._operators import given as given
from ._operators import grad as grad
from ._operators import jump as jump
from ._operators import lap as lap
from ._operators import log as log
from ._operators import normal as normal
from ._operators import parameter as parameter
from ._operators import piecewise as piecewise
from ._operators import sampled as sampled
from ._operators import scale as scale
from ._operators import sin as sin
from ._operators import sinh as sinh
from ._operators import sqrt as sqrt
from ._operators import tanh as tanh
from ._operators import test_function as test_function
from ._operators import unknown as unknown
from ._operators import weak as weak
from ._primitives import Ball as Ball
from ._primitives import Box as Box
from ._primitives import Disc as Disc
from ._primitives import Polygon as Polygon
from ._primitives import cube as cube
from ._problem import Problem as Problem
from ._problem import across as across
from ._problem import initial as initial
from ._problem import measured as measured
from ._problem import on as on
from ._shapes import Shape as Shape
from ._shapes import difference as difference
from ._shapes import intersection as intersection
from ._shapes import union as union
from ._solution import Solution as Solution
from ._solution import load as load
from ._solve import choose as choose
from ._solve import solve as solve
from ._status import Status as Status
from ._workload import workload as workload
