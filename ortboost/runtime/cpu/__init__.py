"""Forms of a step graph that run faster on the CPU; see :mod:`ortboost.runtime.peepholes`."""
