"""Turn an ONNX model into a boosted training program, train it with ONNX Runtime, export it.

``__init__.pyi`` lists the public names. Each is loaded on first use, so that ``import ortboost`` is
fast.
"""

from ortboost.core.lazy import attach_stub
from ortboost.core.version import __version__ as __version__

__all__, __getattr__, __dir__ = attach_stub(__name__, __path__[0])
