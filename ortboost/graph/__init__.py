"""ONNX graphs: load, save, normalize, query, build. Independent of training.

- Queries and changes: ``query``, ``reach``, ``patterns``, ``bodies``; ``build``, ``formulas``,
  ``rewriting``, ``unused``.
- Files: ``io``, ``file_kind``, ``source``; ``structure`` checks them before any library sees them.
- ``normalize`` brings a model into the form that the other packages work on, with the rewrites
  of ``normal_form``, ``opsets``, ``shapes`` and ``weights``.
- Cost: ``cost``, ``layers``.
"""
