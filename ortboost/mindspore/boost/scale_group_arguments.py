"""Arguments of :class:`ortboost.mindspore.boost.GroupLossScaleManager`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ortboost.core.arguments import check_argument
from ortboost.core.errors import nearest
from ortboost.graph.query import match_names
from ortboost.mindspore.core.arguments import ArgumentValueError, positive
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.nn.optimizer import exact_patterns

__all__ = ["exact_groups", "first_scales"]


def exact_groups(
    owner: str, groups: Sequence[Any], trained: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Convert groups, lists of parameters or of shell-style patterns, to patterns of one each.

    Each of the ``trained`` names must be in exactly one group. Errors name the caller, ``owner``.
    """
    where = f"{owner}, loss_scale_groups"
    # Parameter to the number of its group.
    found: dict[str, int] = {}
    for number, group in enumerate(groups, 1):
        check_argument(where, f"group {number}", group, list | tuple)
        for member in group:
            check_argument(where, f"a member of group {number}", member, Parameter | str)
            given = member.name if isinstance(member, Parameter) else member
            patterns = exact_patterns([given]) if isinstance(member, Parameter) else (given,)
            hits, _ = match_names(trained, patterns)
            if not hits:
                raise ArgumentValueError(
                    f"'{given}' is not a parameter of the optimizer.",
                    where=f"{where}, group {number}",
                    fix=nearest(given, trained),
                )
            for name in hits:
                if found.setdefault(name, number) != number:
                    raise ArgumentValueError(
                        f"'{name}' is in the groups {found[name]} and {number}.",
                        where=where,
                        fix="Leave it in one of them.",
                    )
        if number not in found.values():
            raise ArgumentValueError(
                "The group has no parameter.",
                where=f"{where}, group {number}",
                fix="Give each group the parameters of some layers.",
            )
    left = [name for name in trained if name not in found]
    if left:
        raise ArgumentValueError(
            f"{len(left)} of the optimizer's parameters are in no group, for example '{left[0]}'.",
            where=where,
            fix="Set manager.loss_scale_groups to lists that cover all of them, or to a number.",
        )
    numbers = range(1, len(groups) + 1)
    return tuple(exact_patterns(n for n in trained if found[n] == number) for number in numbers)


def first_scales(owner: str, value: Any) -> float | list[float]:
    """Check a number or a list of numbers, all above 0."""
    if isinstance(value, list | tuple):
        if not value:
            raise ArgumentValueError(
                "The list is empty.",
                where=f"{owner}, init_loss_scale",
                fix="Give a number, or one for each group.",
            )
        return [positive(owner, "init_loss_scale", number) for number in value]
    return positive(owner, "init_loss_scale", value)
