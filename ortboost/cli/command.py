"""Commands built from functions whose parameters are option groups, with configuration files.

An option group is a dataclass whose fields are command-line options, named like the arguments or
the fields of a configuration that they set. A function with parameters of such types becomes a
command that has every option of its groups. Unless it is marked ``file=False``, it also has::

    --config FILE     read options from a TOML file, keyed by option name; options on the command
                      line take precedence; `version` is the version of the file format
    --print-config    print the given options as such a file and exit
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pkgutil
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.models import OptionInfo

from ortboost.core.config_file import CONFIG_VERSION, without_version
from ortboost.core.errors import ConfigError, FileError, require_known
from ortboost.core.files import read_text

__all__ = ["Options", "Read", "Verb", "option", "verb"]

_CONFIG, _PRINT = "config", "print_config"
_HELP: Final = "TOML file of options, keyed by name; command-line options take precedence."


class Read(typing.NamedTuple):
    """Marks an option whose value is an argument only after a function has read it.

    Args:
        function: The function, or its name below ``ortboost``: then it is imported when the option
            is used, so that ``--help`` stays fast.
    """

    function: Callable[[Any], Any] | str


def option(
    help: str,
    *names: str,
    default: Any = None,
    read: Callable[[Any], Any] | str = lambda value: value,
    **settings: Any,
) -> Any:
    """Declare an option: a field of an option group, or the default of a command's parameter.

    Args:
        help: The help text.
        names: Option strings; derived from the field name if not given.
        default: The default value.
        read: See :class:`Read`.
        settings: Further arguments of :func:`typer.Option`.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Reading(Options):
        ...     batch_size: int = option("Samples in a batch.", default=64, min=1)
        >>> Reading().batch_size
        64
    """
    declared = typer.Option(*names, help=help, **settings)
    return dataclasses.field(default=default, metadata={"option": declared, "read": Read(read)})


@dataclasses.dataclass(frozen=True)
class Options:
    """Base of the option groups."""

    def given(self) -> dict[str, Any]:
        """The arguments that the options set; those left at ``None`` are left out.

        Example:
            >>> @dataclasses.dataclass(frozen=True)
            ... class Reading(Options):
            ...     mapping: list[str] | None = option("", read="cli.parse.parse_mapping")
            ...     images: str | None = option("")
            >>> Reading(["x=pixels"]).given()
            {'mapping': {'x': 'pixels'}}
        """
        found = {}
        for name, marks in self._marks().items():
            value = getattr(self, name)
            if value is None:
                continue
            for function in (mark.function for mark in marks if isinstance(mark, Read)):
                if isinstance(function, str):
                    function = pkgutil.resolve_name(f"ortboost.{function}")
                value = function(value)
            found[name] = tuple(value) if isinstance(value, list) else value
        return found

    def named(self) -> dict[str, Any]:
        """The values by the name of the option on the command line."""
        found = {}
        for name, marks in self._marks().items():
            declared = next((mark for mark in marks if isinstance(mark, OptionInfo)), None)
            # In an annotation the first string of an option takes the place of its default.
            text = getattr(declared, "default", None)
            option = text if isinstance(text, str) else f"--{name.replace('_', '-')}"
            found[option] = getattr(self, name)
        return found

    def changed(self, *options: str) -> dict[str, bool]:
        """For some options, whether their value is not the default."""
        usual, now = type(self)().named(), self.named()
        return {name: now[name] != usual[name] for name in options}

    def _marks(self) -> dict[str, tuple[Any, ...]]:
        """What is declared about each field, in its metadata and its annotation."""
        hints = typing.get_type_hints(type(self), include_extras=True)
        return {
            item.name: (*item.metadata.values(), *getattr(hints[item.name], "__metadata__", ()))
            for item in dataclasses.fields(self)
        }


@dataclasses.dataclass(frozen=True)
class Verb:
    """A command of the command line.

    Args:
        name: The name on the command line.
        short: Its line in the list of commands.
        epilog: Examples, at the end of its help.
        command: The function for :meth:`typer.Typer.command`.
    """

    name: str
    short: str
    epilog: str
    command: Callable[..., Any]


def verb(
    name: str, short: str = "", *, examples: str, also: str = "", file: bool = True
) -> Callable[[Callable[..., None]], Verb]:
    """Decorator: turn a function of arguments, options and option groups into a command.

    Each field of a group needs an annotation for typer and a default. A parameter named ``config``
    receives the path of a ``--config`` file that is not TOML.

    Args:
        name: See :class:`Verb`.
        short: See :class:`Verb`; default: the docstring, which may be cut off there.
        examples: Examples, at the end of its help.
        also: Other formats that ``--config`` accepts, for its help.
        file: Whether the command has ``--config``.
    """
    return lambda function: Verb(
        name, short or (function.__doc__ or ""), examples, _command(function, also, file)
    )


def _command(function: Callable[..., None], also: str, file: bool) -> Callable[..., Any]:
    hints = typing.get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {
        n: hint for n, hint in hints.items() if dataclasses.is_dataclass(hint)
    }
    parameters = list(inspect.signature(function).parameters.values())
    own = [item.name for item in parameters if item.name not in groups and item.name != _CONFIG]
    fields = {name: _parameters(group) for name, group in groups.items()}
    flat = [
        parameter
        for item in parameters
        if item.name != _CONFIG
        for parameter in fields.get(item.name)
        or [_parameter(item.name, hints[item.name], item.default)]
    ] + (_added(also) if file else [])
    for parameter in flat:
        for mark in getattr(parameter.annotation, "__metadata__", ()):
            if not isinstance(mark, Read):  # typer's Option
                mark.readable = False  # an unreadable file is a file error, not a usage error

    def command(ctx: typer.Context, **given: Any) -> Any:
        base = given.pop(_CONFIG, None)
        if given.pop(_PRINT, False):
            print(_written(ctx, base), end="")
            raise typer.Exit
        arguments = {name: given[name] for name in own}
        for name, group in groups.items():
            arguments[name] = group(**{item.name: given[item.name] for item in fields[name]})
        if any(item.name == _CONFIG for item in parameters):
            arguments[_CONFIG] = base
        return function(**arguments)

    # Typer reads the options from the signature, and their types from the annotations.
    command.__doc__, command.__name__ = function.__doc__, function.__name__
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    command.__signature__ = inspect.Signature([context, *flat])  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in (context, *flat)}
    return command


def _parameters(group: Any) -> list[inspect.Parameter]:
    """The options of a group, as parameters for typer."""
    hints = typing.get_type_hints(group, include_extras=True)
    return [_parameter(item.name, hints[item.name], item) for item in dataclasses.fields(group)]


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """An argument or an option for typer; a default may be a field made by :func:`option`."""
    if isinstance(default, dataclasses.Field):
        if "option" in default.metadata:
            hint = Annotated[hint, default.metadata["option"]]
        missing = default.default is dataclasses.MISSING
        default = inspect.Parameter.empty if missing else default.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)


def _added(also: str) -> list[inspect.Parameter]:
    """``--config`` and ``--print-config``."""

    def read(ctx: typer.Context, path: Path | None) -> Path | None:
        """Use the values of a TOML file as defaults; any other file is passed to the command."""
        if path is None or (also and path.suffix.lower() == ".json"):
            return path
        values = _values(ctx, path)
        base = values.pop(_CONFIG, None)
        # This option is eager: the parser reads all others after it, with these defaults.
        ctx.default_map = {**(ctx.default_map or {}), **values}
        return None if base is None else Path(base)

    file = typer.Option("--config", metavar="FILE", is_eager=True, callback=read, help=_HELP + also)
    shown = typer.Option(
        "--print-config", help="Print the given options as a configuration file and exit."
    )
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(_CONFIG, keyword, default=None, annotation=Annotated[Path | None, file]),
        inspect.Parameter(_PRINT, keyword, default=False, annotation=Annotated[bool, shown]),
    ]


def _values(ctx: typer.Context, path: Path) -> dict[str, Any]:
    """The values of a configuration file, keyed by parameter name."""
    known = {_key(item): item for item in ctx.command.params if item.name != _PRINT}
    values: dict[str, Any] = {}
    for key, value in without_version(_toml(path), path).items():
        name = key.replace("_", "-")
        require_known(name, known, f"Unknown option '{key}'.", str(path), ConfigError)
        many = bool(getattr(known[name], "multiple", False)) or known[name].nargs == -1
        if isinstance(value, Mapping) or (isinstance(value, list) and not many):
            raise ConfigError(
                f"'{key}' is {value!r}; a string or a number is needed.",
                where=str(path),
                fix=f'Write it as on the command line: {name} = "...".',
            )
        values[str(known[name].name)] = [value] if many and not isinstance(value, list) else value
    return values


def _toml(path: Path) -> dict[str, Any]:
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        data: dict[str, Any] = tomllib.loads(read_text(path).removeprefix("\ufeff"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(
            "The configuration file cannot be read.",
            where=f"{path}: {error}",
            fix="Write TOML whose keys are option names, for example epochs = 20 or lr = "
            '"cosine:0.1".',
        ) from error
    return data


def _written(ctx: typer.Context, base: Path | None) -> str:
    """The options that were given, on the command line or in a file, as TOML."""
    given = {
        _key(item): ctx.params.get(item.name or "")
        for item in ctx.command.params
        if _given(ctx, item)
    }
    if base is not None:
        given[_CONFIG] = base
    # JSON strings, numbers, booleans and lists of them are valid TOML.
    return f"version = {CONFIG_VERSION}\n" + "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}\n"
        for key, value in given.items()
    )


def _given(ctx: typer.Context, item: Any) -> bool:
    source = ctx.get_parameter_source(item.name)
    return item.name not in (_CONFIG, _PRINT) and source is not None and source.name != "DEFAULT"


def _key(item: Any) -> str:
    """The name of an option in a file: the long option without its leading dashes."""
    if item.param_type_name == "argument":
        return str(item.name).replace("_", "-")
    name: str = next((name for name in item.opts if name.startswith("--")), item.opts[0])
    return name.lstrip("-")
