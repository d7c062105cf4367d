"""Configurations: frozen dataclasses, converted from and to plain data, checked by annotation.

cattrs does the work; the hooks below make it strict (strings and numbers are never converted into
each other, no key is ignored) and turn its findings into the errors of :mod:`ortboost.core.errors`.
A range is part of the annotation: ``Annotated[int, Range(1)]``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import cattrs
import cattrs.gen
import numpy as np

from ortboost.core.errors import ConfigError, nearest
from ortboost.core.field_words import (
    FAMILIES,
    UNIONS,
    Family,
    OnlyFloat,
    Range,
    UnfitError,
    field_error,
    without_alias,
)

__all__ = ["Range", "check_kinds", "check_value", "describe_family", "read_config", "write_config"]

T = TypeVar("T")
_INT64: Final = 2**63  # the range of an int64 tensor
_OF_64_BITS: Final = Annotated[int, Range(1 - _INT64, _INT64 - 1)]
_DOUBLE: Final = 2**1023  # larger ints may not fit into a float


def check_kinds(config: Any, where: str) -> None:
    """Reject a dataclass with a field value that its annotation does not allow.

    A float field accepts an int and a tuple field a list; a bool is not a number, and 2.0 not an
    int.

    Args:
        config: A dataclass instance, in its ``__post_init__``.
        where: Description of the dataclass, for the error; empty if the field name is enough.

    Raises:
        ConfigError: The first field that does not fit.

    Example:
        >>> @dataclasses.dataclass
        ... class Window:
        ...     size: Annotated[int, Range(1)] = 1
        >>> check_kinds(Window("ten"), "window")
        Traceback (most recent call last):
        ...
        ortboost.core.errors.ConfigError: 'size' is 'ten'; a whole number is needed.
          where: window, size
          fix:   Give a whole number.
    """
    kind: Any = type(config)
    for name, hint in _fields(kind):
        try:
            _checker.structure(getattr(config, name), hint)
        except Exception as error:
            raise _explained(error, [where, name]) from None


def check_value(value: object, hint: Any) -> None:
    """Raise an UnfitError if the type, choice or range of a value does not match an annotation."""
    _checker.structure(value, hint)


def read_config(kind: type[T], data: Any, where: str = "configuration") -> T:
    """Build a configuration from plain data, also a nested one; absent keys keep their defaults.

    Args:
        kind: The dataclass, or the base of a family, see :func:`describe_family`. Ranges are
            checked by the :func:`check_kinds` of its ``__post_init__``.
        data: The output of :func:`write_config`, or a part of it; configuration objects inside it
            are kept.
        where: Description of the data, for the error.

    Raises:
        ConfigError: An unknown key (the nearest one is suggested), a missing key, or an invalid
            value.

    Example:
        >>> read_config(Range, {"leest": 1}, "range")
        Traceback (most recent call last):
        ...
        ortboost.core.errors.ConfigError: Unknown key 'leest'.
          where: range
          fix:   did you mean 'least'? (choices: least, most, above, below)
    """
    try:
        return _reader.structure(data, kind)
    except Exception as error:
        raise _explained(error, [where]) from None


def write_config(config: Any) -> dict[str, Any]:
    """A configuration as plain JSON data.

    Example:
        >>> write_config(Range(1, 2))["most"]
        2
    """
    data: dict[str, Any] = _reader.unstructure(config)
    return data


def describe_family(
    family: Any,
    tag: str,
    kinds: Mapping[str, type[Any]],
    *,
    words: str,
    default: str = "",
    written: Mapping[str, str] | None = None,
    hint: str = "",
) -> None:
    """Let a field hold one of several configurations, distinguished by a key in plain data.

    Args:
        family: Their union or common base, as written in annotations.
        tag: The key that holds the name.
        kinds: Name to class. Entries may be added later.
        words: A description for errors: ``an optimizer``.
        default: The name if the key is absent; if empty, the key is required.
        written: Field to its key in plain data, where they differ; both are read.
        hint: What else to try if a name is unknown, for errors.
    """
    written = written or {}
    field_of = {key: name for name, key in written.items()}

    def read(data: Any, _: Any) -> Any:
        if not isinstance(data, Mapping):
            return _instance(data, family)
        arguments = {field_of.get(key, key): value for key, value in data.items()}
        # Two keys of the data mean the same field.
        if len(arguments) < len(data):
            twice = next(key for key in field_of if key in data and field_of[key] in data)
            raise ConfigError(
                f"'{twice}' is given twice.",
                where=f"{twice} and {field_of[twice]}",
                fix="Give one of them.",
            )
        name = str(arguments.pop(tag, default))
        if name not in kinds:
            what = f"Unknown {words.partition(' ')[2]} '{name}'."
            raise ConfigError(what, where=tag, fix=nearest(name, kinds) + hint)
        return _reader.structure(arguments, kinds[name])

    FAMILIES[family] = Family(words, {tag: default or next(iter(kinds))}, kinds)

    def write(config: Any) -> dict[str, Any]:
        name = next(name for name, kind in kinds.items() if type(config) is kind)
        keys = [item.name for item in dataclasses.fields(config)]
        members = {written.get(k, k): _reader.unstructure(getattr(config, k)) for k in keys}
        return {tag: name, **members}

    def belongs(hint: Any) -> bool:
        return hint == family or (isinstance(hint, type) and hint in kinds.values())

    _reader.register_structure_hook_func(lambda hint: bool(hint == family), read)
    _reader.register_unstructure_hook_func(belongs, write)
    _checker.register_structure_hook_func(lambda hint: bool(hint == family), _instance)


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple((item.name, hints[item.name]) for item in dataclasses.fields(kind))


def _instance(value: Any, hint: Any) -> Any:
    # A class may match a protocol, as an instance of it does.
    if not isinstance(value, hint) or (isinstance(value, type) and hint in FAMILIES):
        raise UnfitError(value, hint)
    return value


def _generic(value: Any, hint: Any) -> Any:
    """For a generic such as ``PathLike[str]``, check the class; its arguments cannot be checked."""
    if not isinstance(value, typing.get_origin(hint)):
        raise UnfitError(value, hint)
    return value


def _whole(value: Any, hint: Any) -> Any:
    kind: Any = type(value)
    if kind is bool or not issubclass(kind, numbers.Integral):
        raise UnfitError(value, hint)
    if abs(value) >= _INT64:
        raise UnfitError(value, _OF_64_BITS, type_fits=True)
    return value


def _real(value: Any, hint: Any) -> Any:
    kind: Any = type(value)
    good = kind is not bool and issubclass(kind, numbers.Real)
    if not good or (kind is int and abs(value) >= _DOUBLE):
        raise UnfitError(value, hint)
    return value


def _choice(value: Any, hint: Any) -> Any:
    if not isinstance(value, str) or value not in typing.get_args(hint):
        raise UnfitError(value, hint, type_fits=True)
    return value


def _ranged(converter: cattrs.Converter, value: Any, hint: Any) -> Any:
    base, *marks = typing.get_args(hint)
    found = converter.structure(value, base)
    if OnlyFloat in marks and not isinstance(found, float):
        raise UnfitError(found, hint)
    for mark in marks:
        # The annotated type may be optional: a range does not apply to None.
        if isinstance(mark, Range) and found is not None and not mark.holds(found):
            raise UnfitError(found, hint, type_fits=True)
    return found


def _either(converter: cattrs.Converter, value: Any, hint: Any) -> Any:
    """Try the members of a union in order; an optional configuration raises its own error."""
    members = typing.get_args(hint)
    if value is None and type(None) in members:
        return None
    type_fits = False
    for member in members:
        try:
            return converter.structure(value, member)
        except Exception as error:
            if isinstance(value, Mapping) and len(members) == 2 and type(None) in members:
                raise  # it says which key of the configuration is wrong
            # One member of the right type is enough to blame the value.
            type_fits |= getattr(error, "type_fits", False)
    raise UnfitError(value, hint, type_fits=type_fits)


def _sequence(converter: cattrs.Converter, value: Any, hint: Any) -> Any:
    if not isinstance(value, tuple | list):
        raise UnfitError(value, hint)
    inner = typing.get_args(hint)
    if (len(inner) == 2 and inner[1] is Ellipsis) or typing.get_origin(hint) is Sequence:
        inner = (inner[0],) * len(value)
    if len(value) != len(inner):
        raise UnfitError(value, hint)
    try:
        return tuple(map(converter.structure, value, inner))
    except UnfitError as unfit:
        # The choices or the range of an element say more than "a list of ...".
        named = typing.get_origin(unfit.hint) in (Annotated, Literal)
        raise unfit if named else UnfitError(value, hint, type_fits=unfit.type_fits) from None


def _mapping(converter: cattrs.Converter, value: Any, hint: Any) -> Any:
    if not isinstance(value, Mapping):
        raise UnfitError(value, hint)
    key, member = typing.get_args(hint)
    return {converter.structure(k, key): converter.structure(v, member) for k, v in value.items()}


def _object(converter: cattrs.Converter, kind: Any) -> Any:
    """The structure hook of a dataclass; an instance is kept unchanged."""
    read = cattrs.gen.make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True)

    def structure(value: Any, hint: Any) -> Any:
        if isinstance(value, Mapping):
            return read(value, hint)
        return _instance(value, hint)

    return structure


def _has(*origins: Any) -> Any:
    return lambda hint: typing.get_origin(hint) in origins


def _strict(converter: cattrs.Converter, *, reads: bool) -> cattrs.Converter:
    """Add hooks for all annotations; ``reads`` lets plain data be built into dataclasses."""
    # The hook registered last has precedence in cattrs, so the general ones come first.
    bound = {
        _either: UNIONS,
        _sequence: (tuple, Sequence),
        _mapping: (Mapping,),
        _ranged: (Annotated,),
    }
    converter.register_structure_hook_func(
        lambda hint: inspect.isclass(typing.get_origin(hint)), _generic
    )
    converter.register_structure_hook_func(inspect.isclass, _instance)
    converter.register_structure_hook_func(
        lambda hint: without_alias(hint) is not hint,
        lambda value, hint: converter.structure(value, without_alias(hint)),
    )
    for read, origins in bound.items():
        converter.register_structure_hook_func(_has(*origins), functools.partial(read, converter))
    converter.register_structure_hook_func(_has(Literal), _choice)
    for kind, hook in ((int, _whole), (float, _real)):
        converter.register_structure_hook(kind, hook)
    for plain in (bool, str, bytes):  # cattrs would convert to these
        converter.register_structure_hook(plain, _instance)
    converter.register_structure_hook_func(lambda hint: hint is Any, lambda value, _: value)
    if reads:
        converter.register_structure_hook_factory(
            lambda hint: inspect.isclass(hint) and dataclasses.is_dataclass(hint),
            functools.partial(_object, converter),
        )
    converter.register_unstructure_hook(np.ndarray, lambda array: array.tolist())
    converter.register_unstructure_hook_func(
        lambda kind: inspect.isclass(kind) and issubclass(kind, np.generic), lambda n: n.item()
    )
    return converter


# Files give plain data where a configuration object belongs; arguments from Python must not.
_reader: Final = _strict(cattrs.Converter(), reads=True)
_checker: Final = _strict(cattrs.Converter(), reads=False)


def _explained(error: BaseException, path: list[str]) -> Exception:
    """The first problem found, with the path of keys to it."""
    if isinstance(error, cattrs.ClassValidationError | cattrs.IterableValidationError):
        # cattrs groups the errors of all fields. An unknown key comes first: if it is misspelled,
        # the key that is meant is missing, too.
        unknown = [e for e in error.exceptions if isinstance(e, cattrs.ForbiddenExtraKeysError)]
        inner = (unknown or error.exceptions)[0]
        notes = [n for n in getattr(inner, "__notes__", ()) if hasattr(n, "name")]
        return _explained(inner, [*path, *(str(note.name) for note in notes)])
    where = ", ".join(filter(None, path))
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        key = str(sorted(map(str, error.extra_fields))[0])
        known = [item.name for item in dataclasses.fields(error.cl)]
        fix = nearest(key, known) if known else "It has no settings."
        return ConfigError(f"Unknown key '{key}'.", where=where, fix=fix)
    if isinstance(error, KeyError):
        return ConfigError(
            f"The key '{error.args[0]}' is missing.",
            where=where,
            fix="Give every key that is needed; this one has no default.",
        )
    if not isinstance(error, UnfitError):
        return error if isinstance(error, Exception) else RuntimeError(error)
    return field_error(path[-1], error, where)
