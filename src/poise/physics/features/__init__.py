"""Structured features: families of functions with closed-form derivatives, each fit for a kind of solution.

Polynomials   smooth solutions; dense tensors in low dimension, sparse products in high
Ridges        sines on a lattice of frequencies, random ridges
Harmonics     logs and multipoles for holes, singular functions for corners
Radial        functions of the distance from a ball's centre
Screened      multipoles of -lap + kappa^2
"""

from ._base import Family as Family
from ._harmonic import Harmonics as Harmonics
from ._harmonic import charges as charges
from ._harmonic import corner as corner
from ._harmonic import multipoles as multipoles
from ._harmonic import powers as powers
from ._polynomial import Polynomials as Polynomials
from ._polynomial import sparse as sparse
from ._polynomial import tensor as tensor
from ._radial import Radial as Radial
from ._screened import Screened as Screened
from ._waves import Hidden as Hidden
from ._waves import Ridges as Ridges
from ._waves import activation as activation
from ._waves import between as between
from ._waves import ridges as ridges
from ._waves import sines as sines
