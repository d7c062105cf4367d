"""MindSpore's names over the layers below; nothing imports it but the aliases ``nn``, ``boost`` and ``amp``.

Arguments are held to their annotations (:func:`ortboost.core.arguments.checked`): another type raises an
``ArgumentTypeError``, a number out of range or an unknown choice an ``ArgumentValueError``, which are the
``TypeError`` and ``ValueError`` that MindSpore documents. The docstrings below do not repeat it.
"""
