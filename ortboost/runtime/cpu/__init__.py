"""Forms of a step graph that the CPU runs faster; see :mod:`ortboost.runtime.peepholes`."""
