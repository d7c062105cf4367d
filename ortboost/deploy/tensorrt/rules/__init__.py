"""The rules, one small function each. Importing this package fills the registry.

A new rule is a function from a :class:`~ortboost.deploy.tensorrt.rules.registry.Context` to
findings, registered with ``@rule("TRT0xx", "what it looks for")`` in the file of its family.
"""

from ortboost.deploy.tensorrt.rules import (  # noqa: F401  importing them fills the registry
    attributes,
    files,
    operators,
    quantization,
    shapes,
    types,
)
from ortboost.deploy.tensorrt.rules.registry import RULES, Context, Rule, rule

__all__ = ["RULES", "Context", "Rule", "rule"]
