"""``ortboost convert`` as a function: convert a model to a program folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortboost.api.former_run import trained_network
from ortboost.api.learning_rates import ANY_STEPS, schedules
from ortboost.api.run_folder import CHECKPOINTS, LOCK, LOG, PLOT, alone_in, refuse_for_model
from ortboost.core.arguments import checked
from ortboost.core.collector import without_collector
from ortboost.core.errors import UsageError
from ortboost.core.files import finish_replacement, foreign_files
from ortboost.core.report import Report
from ortboost.graph.io import ModelSource, load_model
from ortboost.program.boost_config import BoostConfig, resolve_boost
from ortboost.program.boosted import boosted
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import MANIFEST, Program

__all__ = ["convert"]

_CONSUMED = (CHECKPOINTS, LOG, PLOT)


@checked
@without_collector()
def convert(
    model: ModelSource,
    out: str | os.PathLike[str],
    config: ProgramConfig | None = None,
    *,
    boost: str | BoostConfig | None = None,
    boost_config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    checkpoint: str = "best",
    overwrite: bool = False,
    dry_run: bool = False,
) -> Program:
    """Convert a model to a training program, and write it as a folder.

    Args:
        model: The model; or a trained program folder, or a checkpoint in one, to fine-tune its
            network from the trained weights (``new_head``, ``freeze``).
        out: The folder to create.
        config: The configuration; the defaults if not given.
        boost: A boost level, ``O0``, ``O1`` or ``O2``, whose boosts are added to the configuration;
            or a resolved :class:`~ortboost.program.boost_config.BoostConfig`.
        boost_config: Settings of the boosts, a dictionary or a JSON file; see
            :mod:`ortboost.program.boost_config`. They apply to a level, ``O0`` if none is given.
        checkpoint: The checkpoint of a program folder; see
            :func:`ortboost.api.run_folder.load_run`.
        overwrite: Replace an existing program, including its checkpoints and logs.
        dry_run: Convert without writing.

    Raises:
        UsageError: The folder already contains a program or other files; with ``overwrite``,
            another process is training or replacing the program; or a checkpoint was given for a
            model that is not a program folder.
        ModelError: The model cannot be trained.
        ConfigError: A boost or setting is unknown or invalid.

    Example:
        >>> import ortboost as ob
        >>> config = ob.ProgramConfig(optimizer=ob.AdamW(), learning_rate="cosine:1e-3")
        >>> program = ob.convert("models/mlp.onnx", "runs/example/convert", config, overwrite=True)
        >>> program.config.optimizer.name
        'adamw'
    """
    folder = Path(out)
    if isinstance(model, str | os.PathLike) and not Path(model).exists():
        load_model(model)  # its error comes before those of the folder
    finish_replacement(folder)
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            "The output of a conversion must be a folder.",
            where=f"{folder} is a file",
            fix="Give the name of a new folder.",
        )
    occupied = _is_occupied(folder, overwrite)
    # Nobody trains in a new folder.
    with alone_in(folder) if occupied and not dry_run else contextlib.nullcontext():
        program = _built(model, folder, config, boost, boost_config, checkpoint)
        if occupied and not dry_run:
            program.save(folder, dropping=_CONSUMED)
    if not occupied and not dry_run:
        with contextlib.suppress(OSError):  # `save` says why
            folder.mkdir(parents=True, exist_ok=True)
        with alone_in(folder) if folder.is_dir() else contextlib.nullcontext():
            _is_occupied(folder, overwrite)  # again: another conversion may have been faster
            program.save(folder, dropping=_CONSUMED)
    return program


def _is_occupied(folder: Path, overwrite: bool) -> bool:
    """Whether there is a program to replace.

    Raises:
        UsageError: There are other files, or a program that must not be replaced.
    """
    if not folder.is_dir() or not foreign_files(folder, LOCK):
        return False
    if not (folder / MANIFEST).is_file():
        raise UsageError(
            "The output folder is not empty, and is not an ortboost program.",
            where=str(folder),
            fix="Give the name of a new folder.",
        )
    if not overwrite:
        raise UsageError(
            "The output folder already contains a program.",
            where=str(folder),
            fix="Give another folder, or --overwrite to replace it with its checkpoints.",
        )
    return True


def _built(
    model: ModelSource,
    folder: Path,
    config: ProgramConfig | None,
    boost: str | BoostConfig | None,
    boost_config: Mapping[str, Any] | str | os.PathLike[str] | None,
    checkpoint: str,
) -> Program:
    reports: list[Report] = []
    former = trained_network(
        model, checkpoint, folder, new_head=config is not None and config.new_head is not None
    )
    if former is not None:
        model = former[0]
        reports.append(former[1])
    else:
        refuse_for_model(model, checkpoint)
    if boost is not None or boost_config is not None:
        if not isinstance(boost, BoostConfig):
            boost = resolve_boost("O0" if boost is None else boost, boost_config)
        config, report = boosted(config or ProgramConfig(), boost)
        reports.append(report)
    program = build_program(model, config)
    program = dataclasses.replace(program, reports=(*reports, *program.reports))
    schedules(program.config, None, ANY_STEPS)  # a misspelled one fails here, not in training
    return program
