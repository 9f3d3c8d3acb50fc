"""Spectral elements: curved quadrilaterals and hexahedra that follow holes, steps and interfaces."""
