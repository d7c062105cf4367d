"""The commands as typed functions, one file per command, loaded lazily (see ``__init__.pyi``).

Example:
    ::

        from ortboost.api import convert, export, train
        from ortboost.program.config import ProgramConfig

        convert("models/lenet5.onnx", "run", ProgramConfig(learning_rate="0.05"))
        summary = train("run", "models/digits.npz", "models/digits.npz", epochs=20)
        export("run", "lenet5.opt.onnx", verify="models/digits.npz")
"""

from ortboost.core.lazy import attach_stub

__all__, __getattr__, __dir__ = attach_stub(__name__, __path__[0])
