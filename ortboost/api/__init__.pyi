"""The verbs and what they give, each in one line; see :mod:`ortboost.core.lazy`."""

from ortboost.api.bench_models import bench as bench
from ortboost.api.check_model import check as check
from ortboost.api.compare_models import Comparison as Comparison
from ortboost.api.compare_models import compare as compare
from ortboost.api.convert_model import convert as convert
from ortboost.api.doctor_machine import HealthCheck as HealthCheck
from ortboost.api.doctor_machine import doctor as doctor
from ortboost.api.evaluate_model import evaluate as evaluate
from ortboost.api.export_model import ExportResult as ExportResult
from ortboost.api.export_model import export as export
from ortboost.api.inspect_model import inspect as inspect
from ortboost.api.list_runs import RunInfo as RunInfo
from ortboost.api.list_runs import follow as follow
from ortboost.api.list_runs import runs as runs
from ortboost.api.plot_graph import Drawing as Drawing
from ortboost.api.plot_graph import plot as plot
from ortboost.api.run_components import pca as pca
from ortboost.api.run_folder import load_run as load_run
from ortboost.api.train_program import train as train
