"""Turn an ONNX model into a boosted training program, train it with ONNX Runtime, export it.

``__init__.pyi`` lists the public names. Each is loaded on first use, so that ``import ortboost`` is
fast.
"""

from ortboost.core.lazy import attach_stub
from ortboost.core.version import __version__ as __version__

_OF_MINDSPORE = {
    "set_context set_device set_seed context GRAPH_MODE PYNATIVE_MODE jit": "leave it out; "
    "ortboost.load has the arguments device and seed, and each step is a graph",
    "ops mint grad value_and_grad GradOperation": "computations belong in the ONNX file; "
    "nn.TrainOneStepCell and Model train it",
    "dataset": "use mindspore.dataset itself, or any iterable of batches",
}
_ELSEWHERE = {
    name: f"{hint}, see docs/mindspore.md"
    for names, hint in _OF_MINDSPORE.items()
    for name in names.split()
}

__all__, __getattr__, __dir__ = attach_stub(__name__, __path__[0], _ELSEWHERE)
