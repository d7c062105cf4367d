"""Turn an ONNX model into a boosted training program, train it with ONNX Runtime, export it.

The names are listed in ``__init__.pyi``. Each is loaded when it is first used, so that ``import
ortboost`` costs nothing.
"""

from ortboost.core.lazy import attach_stub
from ortboost.core.version import __version__ as __version__

__all__, __getattr__, __dir__ = attach_stub(__name__, __path__[0])
