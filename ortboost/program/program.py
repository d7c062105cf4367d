"""A program: the graphs, the state and the manifest of one training job, in memory or as a folder.

::

    run/
      program.json        manifest: versions, configuration, reports, catalogue
      step.onnx           one training step
      step.1.onnx, ...    the same for fewer parameters (gradient freeze)
      flush.onnx, ...     the update with an incomplete window (accumulation)
      trial.onnx, accept.onnx   the loss at a trial rate, and the accepted update (DimReduce)
      eval.onnx           outputs and loss in inference mode, on the same state
      state.safetensors   initial state
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.arguments import checked
from ortboost.core.collector import without_collector
from ortboost.core.errors import ConfigError, FileError
from ortboost.core.files import (
    check_name,
    finish_replacement,
    read_json,
    replace_files,
    temporary_folder,
    write_json,
)
from ortboost.core.limits import LIMITS_VARIABLE
from ortboost.core.report import Report
from ortboost.core.shown import Shown
from ortboost.core.tensor_file import Selection, write_tensors
from ortboost.core.version import __version__
from ortboost.graph.file_kind import program_around
from ortboost.graph.io import load_model, save_model
from ortboost.optimizers import OPTIMIZERS
from ortboost.program.catalogue import Catalogue, TensorSpec, read_catalogue
from ortboost.program.config import ProgramConfig
from ortboost.program.digests import (
    EVALUATION,
    Digests,
    digest_graphs,
    digest_settings,
    digest_state,
)
from ortboost.program.names import STEP_GRAPH, slot_parameter
from ortboost.program.state_file import check_state, read_tensors

__all__ = [
    "EVAL",
    "MANIFEST",
    "STATE",
    "STEP",
    "Program",
    "is_part",
]

MANIFEST, STEP, EVAL, STATE = "program.json", "step.onnx", "eval.onnx", "state.safetensors"
_FORMAT = 1
# Names of graphs; no others are read from a manifest, because they become part of a path.
_GRAPH = re.compile(r"(step|flush)(\.\d+)?|trial|accept")
_GRAPHS = "graphs"  # of the state of a pickle
_NO_GRAPHS = {"step": None, "evaluation": None, "variants": None}
_OF_GRAPH = re.compile(rf"({_GRAPH.pattern}|eval)\.onnx(\.([0-9a-f]{{16}}\.)?data)?")


@dataclass(frozen=True, repr=False)
class Program(Shown):
    """A boosted training program.

    Args:
        step: The step graph; its state tensors are inputs.
        evaluation: Inference graph with outputs and ``loss``, on the same parameters and buffers.
        catalogue: Inputs, states and outputs of the step; the states of all graphs.
        initial: State name to initial value; for a loaded program, each access reads the file.
        config: The configuration of the conversion.
        engine: Name of the autodiff engine.
        source: Path or name of the model.
        prediction: Name of the output that the loss is computed from.
        reports: Reports of the rewrites.
        variants: Further training graphs by name; each contains its own catalogue.

    Example:
        >>> import ortboost as ob
        >>> program = ob.build_program("models/mlp.onnx")
        >>> sorted(program.graphs), [spec.name for spec in program.catalogue.batch]
        (['step'], ['x', 'labels'])
    """

    step: ir.Model
    evaluation: ir.Model
    catalogue: Catalogue
    initial: Mapping[str, NDArray[Any]]
    config: ProgramConfig
    engine: str
    source: str
    prediction: str
    reports: tuple[Report, ...]
    variants: Mapping[str, ir.Model] = field(default_factory=dict)

    def _facts(self) -> dict[str, object]:
        return {
            "of": self.source,
            "graphs": ", ".join(self.graphs),
            "engine": self.engine,
            "state": f"{len(self.catalogue.state)} tensors",
            "boosts": ", ".join(boost.name for boost in self.config.enabled_boosts),
        }

    # Pickles and deep copies contain the graphs as files do: their objects link to each other, and
    # following these links through a long graph exceeds Python's recursion limit.

    def __getstate__(self) -> dict[str, Any]:
        graphs = {**self.graphs, EVALUATION: self.evaluation}
        data = {name: ir.to_proto(model).SerializeToString() for name, model in graphs.items()}
        return {**self.__dict__, **_NO_GRAPHS, "initial": dict(self.initial), _GRAPHS: data}

    def __setstate__(self, state: dict[str, Any]) -> None:
        data = state.pop(_GRAPHS)
        read = {name: ir.from_proto(onnx.ModelProto.FromString(data[name])) for name in data}
        graphs = {
            "step": read.pop(STEP_GRAPH),
            "evaluation": read.pop(EVALUATION),
            "variants": read,
        }
        self.__dict__.update(state | graphs)

    @property
    def graphs(self) -> dict[str, ir.Model]:
        """All training graphs by name, ``step`` first."""
        return {STEP_GRAPH: self.step, **self.variants}

    def catalogue_of(self, graph: str) -> Catalogue:
        """Inputs, states and outputs of one of the :attr:`graphs`."""
        return read_catalogue(self.graphs[graph])

    @property
    def fingerprint(self) -> str:
        """Identifies the step graphs and their state, to reject checkpoints of other programs.

        It covers the catalogue and the nodes, not the initial values.
        """
        return digest_graphs(self.catalogue, self.graphs).fingerprint

    def initial_digest(self, names: Iterable[str] | None = None) -> str:
        """Identifies the initial values of some states, or of all; it reads them."""
        return digest_state(self.initial if names is None else Selection(self.initial, names))

    @property
    def labels(self) -> str | None:
        """Name of the label input; ``None`` if the model computes its own loss."""
        # A model with its own loss may have an input of this name, which is ordinary data.
        return None if self.config.loss.name == "output" else self.config.loss.labels

    @property
    def counted_labels(self) -> str | None:
        """The input whose labels a mean loss counts, also if the model computes the loss."""
        indices = [spec.name for spec in self.catalogue.batch if spec.classes is not None]
        return self.labels or (indices[0] if len(indices) == 1 else None)

    @property
    def evaluation_inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs of the evaluation graph that are data."""
        known = {spec.name: spec for spec in self.catalogue.batch}
        return tuple(known[v.name] for v in self.evaluation.graph.inputs if v.name in known)

    @property
    def evaluated(self) -> dict[str, str]:
        """Parameter to the state that the evaluation graph reads in its place, if any does."""
        slots = {entry.name for entry in self.catalogue.entries("slot")}
        read = [value.name or "" for value in self.evaluation.graph.inputs]
        return {slot_parameter(name): name for name in read if name in slots}

    @checked
    @without_collector()
    def save(self, folder: str | os.PathLike[str], *, dropping: Sequence[str] = ()) -> Path:
        """Write the program as a folder. A crash leaves either the previous program or the new one.

        Args:
            folder: The folder; other files in it are kept.
            dropping: Names of files or folders in it to remove together with the previous program.

        Raises:
            FileError: The folder cannot be created or written.
            ConfigError: The optimizer is not registered, so the folder could not be read.
        """
        if type(self.config.optimizer) not in OPTIMIZERS.values():
            raise ConfigError(
                f"The optimizer {type(self.config.optimizer).__qualname__} is not registered: a "
                "program folder with it could not be read.",
                where="ProgramConfig, optimizer",
                fix="Decorate its class with ortboost.optimizers.register.",
            )
        if not os.fspath(folder):
            raise FileError("The program folder has no name.", where="''", fix="Name a folder.")
        target = Path(folder)
        check_name(target)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(
                "The program folder cannot be created.",
                where=f"{target}: {error}",
                fix="Choose another path.",
            ) from error
        # A process that died may have left a replacement unfinished.
        finish_replacement(target)
        with temporary_folder(target) as made:
            digests = self._digests(
                lambda name, model, proto: save_model(model, made / _file(name), proto=proto)
            )
            try:
                write_tensors(made / STATE, self.initial)
            except (OSError, ValueError) as error:
                raise FileError(
                    "The state cannot be written.",
                    where=f"{target / STATE}: {error}",
                    fix="Check the free space and permissions.",
                ) from error
            write_json(made / MANIFEST, self._manifest(digests))
            # Remove the files of an earlier program with more graphs, too.
            former = [path.name for path in target.iterdir() if _OF_GRAPH.fullmatch(path.name)]
            replace_files(made, target, {*former, *dropping})
        return target

    def _digests(self, each: Callable[..., None] = lambda *_: None) -> Digests:
        return digest_graphs(self.catalogue, self.graphs, self.evaluation, each)

    def manifest(self) -> dict[str, Any]:
        """The contents of ``program.json``."""
        return self._manifest(self._digests())

    def _manifest(self, digests: Digests) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "ortboost": __version__,
            "onnx": onnx.__version__,
            "source": self.source,
            "engine": self.engine,
            "fingerprint": digests.fingerprint,
            "evaluation": digests.evaluation,
            "initial": self.initial_digest(),
            "models": digests.around,
            "prediction": self.prediction,
            "graphs": {**{name: _file(name) for name in self.graphs}, EVALUATION: EVAL},
            "state": STATE,
            "config": self.config.to_dict(),
            "settings": digest_settings(self.config.to_dict()),
            "catalogue": self.catalogue.to_dict(),
            "reports": [report.to_dict() for report in self.reports],
        }

    @classmethod
    @checked
    @without_collector()
    def load(cls, folder: str | os.PathLike[str]) -> Program:
        """Read a program folder.

        Raises:
            FileError: A file is missing, damaged or of an unsupported format, or the files do not
                match.
        """
        source = Path(folder)
        finish_replacement(source)
        if not (source / MANIFEST).is_file():
            raise FileError(
                "Not a program folder.",
                where=f"{source}: {MANIFEST} is missing",
                fix=program_around(source)
                or "Make one with 'ortboost convert MODEL.onnx -o FOLDER'.",
            )
        with _advised():
            manifest = read_json(source / MANIFEST)
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise FileError(
                "The format of the program is not supported by this version of ortboost.",
                where=f"{source / MANIFEST}: format, {_written_by(manifest)}",
                fix=_AGAIN,
            )
        try:
            with _advised():
                program = cls(
                    step=load_model(source / STEP),
                    evaluation=load_model(source / EVAL),
                    catalogue=Catalogue.from_dict(
                        manifest["catalogue"], where=f"{source / MANIFEST}: catalogue"
                    ),
                    initial=read_tensors(source / STATE),
                    config=ProgramConfig.from_dict(manifest["config"]),
                    engine=str(manifest["engine"]),
                    source=str(manifest["source"]),
                    prediction=str(manifest["prediction"]),
                    reports=tuple(Report.from_dict(report) for report in manifest["reports"]),
                    variants={
                        name: load_model(source / _file(name))
                        for name in manifest["graphs"]
                        if name != STEP_GRAPH and _GRAPH.fullmatch(name)
                    },
                )
        except ConfigError as error:  # an older version, an edited file, or an unregistered boost
            raise FileError(
                f"The configuration of the program cannot be read: {error.what}",
                where=f"{source / MANIFEST}, {_written_by(manifest)}: {error.where}",
                fix=f"{error.fix} Or convert the model again.",
            ) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(
                "The manifest of the program is damaged.",
                where=f"{source / MANIFEST}, {_written_by(manifest)}: {error!r}",
                fix=_AGAIN,
            ) from error
        check_state(program.catalogue, program.initial, where=str(source / STATE))
        program._check_digests(manifest, source)
        return program

    def _check_digests(self, manifest: Mapping[str, Any], source: Path) -> None:
        """Check that graphs, settings and initial state are those that the manifest describes.

        Manifests of older versions lack some digests.

        Raises:
            FileError: One is not.
        """
        digests = self._digests()
        if digests.fingerprint != manifest.get("fingerprint"):
            raise FileError(
                "The step graph does not match the manifest.",
                where=f"{source / STEP}: fingerprint in {MANIFEST}",
                fix=_AGAIN,
            )
        settings = digest_settings(manifest["config"])
        if settings != manifest.get("settings", settings):
            raise FileError(
                "The configuration is not the one that the graphs were built with.",
                where=f"{source / MANIFEST}: config",
                fix="Convert the model again; only learning rates may be changed afterwards.",
            )
        if digests.evaluation != manifest.get("evaluation"):
            raise FileError(
                "The evaluation graph does not match the manifest.",
                where=f"{source / EVAL}: 'evaluation' in {MANIFEST}",
                fix=_AGAIN,
            )
        models = digests.around
        recorded = manifest.get("models", models)
        if recorded != models:
            known = recorded if isinstance(recorded, dict) else {}
            other = [name for name in models if known.get(name) != models[name]]
            raise FileError(
                "Opset, functions or metadata of a graph do not match the manifest.",
                where=f"{source / _file((other or [STEP_GRAPH])[0])}: 'models' in {MANIFEST}",
                fix=_AGAIN,
            )
        if "initial" in manifest and manifest["initial"] != self.initial_digest():
            raise FileError(
                "The initial state does not match the manifest.",
                where=f"{source / STATE}: 'initial' in {MANIFEST}",
                fix=_AGAIN,
            )


_AGAIN = (
    "Convert the model again with the same options, into another folder, and copy the folder "
    "'checkpoints' there."
)
"""Not into this folder: that would remove its checkpoints."""


def is_part(name: str) -> bool:
    """Whether a program folder calls a file of its own like this.

    Example:
        >>> is_part("step.1.onnx"), is_part("model.onnx")
        (True, False)
    """
    return name in (MANIFEST, STATE) or _OF_GRAPH.fullmatch(name) is not None


def _written_by(manifest: Any) -> str:
    version = manifest.get("ortboost") if isinstance(manifest, dict) else None
    return f"written by ortboost {version or 'of an unknown version'}"


def _file(graph: str) -> str:
    return f"{graph}.onnx"


@contextmanager
def _advised() -> Iterator[None]:
    """Where a file of a program is damaged, say how to mend a program, not that file."""
    try:
        yield
    except FileError as error:
        if LIMITS_VARIABLE in error.fix or isinstance(error.__cause__, PermissionError):
            raise
        raise FileError(error.what, where=error.where, fix=_AGAIN) from error
