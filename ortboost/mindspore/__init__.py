"""MindSpore's API on top of ortboost; only the aliases ``nn``, ``boost`` and ``amp`` import it.

Arguments are checked against their annotations (:func:`ortboost.core.arguments.checked`): a wrong
type raises an ``ArgumentTypeError``, a number out of range or an unknown choice an
``ArgumentValueError``. These are the ``TypeError`` and ``ValueError`` that MindSpore documents. The
docstrings below do not repeat this.
"""
