"""``Model``: training, validation and prediction in one object, as in MindSpore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np

from ortboost.core.arguments import check_argument, checked
from ortboost.core.errors import require_known
from ortboost.core.field_types import Range
from ortboost.mindspore.amp import BoostLevel, LossScaleManager, build_train_network
from ortboost.mindspore.boost.auto_boost import AutoBoost
from ortboost.mindspore.boost.group_loss_scale import GroupLossScaleManager
from ortboost.mindspore.communication import ParallelMode, shared_group
from ortboost.mindspore.core.arguments import ArgumentTypeError, ArgumentValueError, Count
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.network import Network
from ortboost.mindspore.core.tensor import Tensor
from ortboost.mindspore.mixed_precision import AmpLevel
from ortboost.mindspore.nn.loss import LossBase
from ortboost.mindspore.nn.metrics import Loss, Metric, chosen, get_metrics
from ortboost.mindspore.nn.optimizer import Optimizer
from ortboost.mindspore.nn.train_step import TrainStep
from ortboost.mindspore.nn.updates import OptimizerWrapper
from ortboost.mindspore.nn.wrap import WithEvalCell, WithLossCell, parts_of
from ortboost.mindspore.train.batches import Batches
from ortboost.mindspore.train.callback import Callback, call_all, entered
from ortboost.mindspore.train.model_arguments import (
    backbone_of,
    boosted,
    check_indexes,
    check_scale_groups,
    check_sink,
    validation_epochs,
)
from ortboost.mindspore.train.run_context import CallbackParam, RunContext

__all__ = ["Model"]

_KEYWORDS = ("boost_config_dict", "loss_scale_manager", "keep_batchnorm_fp32")


class Model:
    """A network with loss, optimizer and metrics, to train and validate it.

    Args:
        network: The network. Without an optimizer it may be a training cell.
        loss_fn: The loss; ``None`` if the network computes its own, or is a
            :class:`ortboost.mindspore.nn.WithLossCell`.
        optimizer: The optimizer, made with the network's parameters.
        metrics: A set of names (``{"accuracy", "loss"}``, see
            :func:`ortboost.mindspore.nn.metrics.names`) or a dict from a name to a metric.
        eval_network: A cell that returns the inputs of the metrics; by default
            :class:`ortboost.mindspore.nn.WithEvalCell`, with the indices 0, 1 and 2.
        eval_indexes: Indices of loss, prediction and label among its outputs. Without them, an
            ``eval_network`` passes all outputs to each metric.
        amp_level: Mixed precision of the training steps, see
            :func:`ortboost.mindspore.amp.build_train_network`. Evaluation and prediction are in
            float32.
        boost_level: ``O0``, ``O1`` or ``O2``: :class:`ortboost.mindspore.boost.AutoBoost` is
            applied to network and optimizer; LessBN converts the network in place.
        **kwargs: ``boost_config_dict`` for :class:`ortboost.mindspore.boost.AutoBoost`;
            ``loss_scale_manager``, which may be a
            :class:`ortboost.mindspore.boost.GroupLossScaleManager`; ``keep_batchnorm_fp32``, see
            :func:`ortboost.mindspore.amp.build_train_network`.

    Raises:
        ArgumentValueError: A setting of the training steps is given without an optimizer.
        NotInThisVersionError: A boost is not supported in this version.

    Example:
        >>> model = Model(net, loss, opt, metrics={"accuracy"})        # doctest: +SKIP
        >>> model.train(2, [(images, labels)], callbacks=LossMonitor())  # doctest: +SKIP
        epoch: 1 step: 1, loss is 2.302585
        epoch: 2 step: 1, loss is 2.2811
        >>> model.eval([(images, labels)])                             # doctest: +SKIP
        {'accuracy': 0.25}
    """

    @checked
    def __init__(
        self,
        network: Cell,
        loss_fn: LossBase | None = None,
        optimizer: Optimizer | OptimizerWrapper | None = None,
        metrics: Any = None,
        eval_network: Cell | None = None,
        eval_indexes: Sequence[int] | None = None,
        amp_level: AmpLevel = "O0",
        boost_level: BoostLevel = "O0",
        **kwargs: Any,
    ) -> None:
        for key in kwargs:
            require_known(key, _KEYWORDS, f"Unknown argument '{key}'.", "Model", ArgumentValueError)
        manager = kwargs.get("loss_scale_manager")
        check_argument(
            "Model", "loss_scale_manager", manager, LossScaleManager | GroupLossScaleManager | None
        )
        # Boosts come first: they replace network and optimizer.
        boost = AutoBoost(boost_level, kwargs.get("boost_config_dict", ""))
        if any(boost.boost_config.values()):
            network, optimizer = boosted(boost, network, optimizer, eval_network)
            check_scale_groups(boost, manager)
        self._network, self._loss_fn, self._manager = network, loss_fn, manager
        self._metrics = get_metrics(metrics)
        self._eval_indexes = check_indexes(eval_indexes)
        self._backbone = backbone_of(network)
        passed = {key: value for key, value in kwargs.items() if key != "boost_config_dict"}
        self._train_network: Any = network
        if optimizer is not None:
            self._train_network = build_train_network(
                network, optimizer, loss_fn, amp_level, boost_level, **passed
            )
        elif amp_level != "O0" or any(value is not None for value in passed.values()):
            name = next((key for key, v in passed.items() if v is not None), "amp_level")
            raise ArgumentValueError(
                f"'{name}' is for training steps, but there is no optimizer.",
                where=f"Model, {name}",
                fix="Leave it out, or give an optimizer; a training cell has its own settings.",
            )
        # Only for the property train_network: without an optimizer it cannot be trained.
        elif loss_fn is not None and isinstance(network, Network):
            self._train_network = WithLossCell(network, loss_fn)
        self._eval_network = eval_network
        if eval_network is None and self._metrics:
            self._eval_network = self._default_eval_network()
            self._eval_indexes = self._eval_indexes or (0, 1, 2)

    def _default_eval_network(self) -> WithEvalCell:
        loss = self._loss_fn
        if loss is None and not isinstance(self._network, TrainStep):
            _, loss = parts_of("Model", self._network)
        if loss is None:
            raise ArgumentValueError(
                "Metrics need a loss function or an evaluation network.",
                where="Model, metrics",
                fix="Give loss_fn, or eval_network and eval_indexes.",
            )
        return WithEvalCell(self._backbone, loss)

    @property
    def train_network(self) -> Cell:
        """The cell called at each step."""
        cell: Cell = self._train_network
        return cell

    @property
    def eval_network(self) -> Cell | None:
        """The cell called for each batch of validation."""
        return self._eval_network

    @property
    def predict_network(self) -> Network:
        """The network."""
        return self._backbone

    # ---- training -----------------------------------------------------------------------------

    def train(
        self,
        epoch: int,
        train_dataset: Any,
        callbacks: Any = None,
        dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
    ) -> None:
        """Train.

        Args:
            epoch: Number of the last epoch, at least 1.
            train_dataset: Batches, see :class:`ortboost.mindspore.train.batches.Batches`.
            callbacks: A callback or a list of them.
            dataset_sink_mode: Accepted without effect: data is fed step by step.
            sink_size: Must be -1 with ``dataset_sink_mode``; otherwise ignored, as in MindSpore.
            initial_epoch: Number of epochs already done, below ``epoch``.
        """
        check_sink("Model.train", dataset_sink_mode, sink_size)
        with entered(callbacks) as listeners:
            self._run("Model.train", epoch, train_dataset, listeners, initial_epoch)

    def fit(
        self,
        epoch: int,
        train_dataset: Any,
        valid_dataset: Any = None,
        valid_frequency: int | Sequence[int] = 1,
        callbacks: Any = None,
        dataset_sink_mode: bool = False,
        valid_dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
    ) -> None:
        """Train, with validations after some epochs, whose results are printed.

        Args:
            epoch: Number of the last epoch, at least 1.
            train_dataset: Batches to train on.
            valid_dataset: Batches to validate on; ``None`` for no validation.
            valid_frequency: Validate after every this many epochs, or after exactly these.
            callbacks: A callback or a list of them.
            dataset_sink_mode: Accepted without effect.
            valid_dataset_sink_mode: Accepted without effect.
            sink_size: As for :meth:`train`.
            initial_epoch: Number of epochs already done.
        """
        owner = "Model.fit"
        check_sink(owner, dataset_sink_mode, sink_size)
        check_argument(owner, "valid_dataset_sink_mode", valid_dataset_sink_mode, bool)
        chosen = validation_epochs(owner, valid_frequency)
        if valid_dataset is None:
            with entered(callbacks) as listeners:
                self._run(owner, epoch, train_dataset, listeners, initial_epoch)
            return
        self._need_metrics(owner)
        batches = self._batches(valid_dataset, owner)

        def validate(number: int, args: CallbackParam) -> None:
            if chosen(number):
                given = CallbackParam(args, valid_dataset=valid_dataset)
                results = self._evaluate(batches, args.list_callback, given)
                args.metrics, args.eval_results = given.metrics, given.eval_results
                print(f"Eval result: epoch {number}, metrics: {results}", flush=True)

        with entered(callbacks) as listeners:
            self._run(owner, epoch, train_dataset, listeners, initial_epoch, validate)

    @checked
    def build(
        self,
        train_dataset: Any = None,
        valid_dataset: Any = None,
        sink_size: int = -1,
        epoch: Count = 1,
        sink_mode: bool = True,
    ) -> None:
        """Check the data sets; the graph of a step is compiled when the step first runs.

        Args:
            train_dataset: Batches to train on, if given.
            valid_dataset: Batches to validate on, if given.
            sink_size: Accepted without effect.
            epoch: Accepted without effect.
            sink_mode: Accepted without effect.
        """
        for dataset in (train_dataset, valid_dataset):
            if dataset is not None:
                self._batches(dataset, "Model.build")
        if valid_dataset is not None:
            self._need_metrics("Model.build")

    def _run(
        self,
        owner: str,
        epoch: Any,
        dataset: Any,
        listeners: list[Callback],
        initial_epoch: Any,
        validate: Callable[[int, CallbackParam], None] | None = None,
    ) -> None:
        check_argument(owner, "epoch", epoch, Count)
        check_argument(owner, "initial_epoch", initial_epoch, Annotated[int, Range(0, epoch - 1)])
        if not isinstance(self._train_network, TrainStep):
            raise ArgumentTypeError(
                "There is no optimizer to train with.",
                where=owner,
                fix="Give Model a loss_fn and an optimizer, or a training cell as network.",
            )
        batches, group = self._batches(dataset, owner), shared_group()
        args = CallbackParam(
            mode="train",
            parallel_mode=ParallelMode.DATA_PARALLEL if group else ParallelMode.STAND_ALONE,
            device_number=group.size if group else 1,
            epoch_num=epoch,
            batch_num=batches.size,
            cur_epoch_num=initial_epoch,
            cur_step_num=initial_epoch * batches.size,
            cur_step_in_epoch=0,
            network=self._backbone,
            train_network=self._train_network,
            eval_network=self._eval_network,
            loss_fn=self._loss_fn,
            optimizer=self._train_network.optimizer,
            train_dataset=dataset,
            train_dataset_element=None,
            net_outputs=None,
            dataset_sink_mode=False,
            list_callback=listeners,
        )
        context = RunContext(args)
        self._train_network.set_train(True)
        call_all(listeners, "on_train_begin", context)
        for number in range(initial_epoch, epoch):
            args.cur_epoch_num, args.cur_step_in_epoch = number + 1, 0
            call_all(listeners, "on_train_epoch_begin", context)
            for batch in batches.epoch(number):
                self._step(batch, listeners, context)
                if context.get_stop_requested():
                    break
            if not args.cur_step_in_epoch:
                raise ArgumentValueError(
                    "The training data has no batches.",
                    where=f"{owner}, epoch {number + 1}",
                    fix="Use more samples or a smaller batch size.",
                )
            # Before the callbacks of the end of the epoch, which read eval_results.
            if validate is not None and not context.get_stop_requested():
                validate(number + 1, args)
            call_all(listeners, "on_train_epoch_end", context)
            args.pop("metrics", None)
            args.pop("eval_results", None)
            if context.get_stop_requested():
                break
        call_all(listeners, "on_train_end", context)

    def _step(self, batch: tuple[Any, ...], listeners: list[Callback], context: RunContext) -> None:
        """Train on one batch."""
        args = context.original_args()
        args.cur_step_num += 1
        args.cur_step_in_epoch += 1
        args.train_dataset_element = batch
        call_all(listeners, "on_train_step_begin", context)
        args.net_outputs = outputs = self._train_network(*batch)
        # The training cell has its own scale; the manager of the host follows the overflows.
        manager = self._manager if isinstance(self._manager, LossScaleManager) else None
        if manager and manager.get_drop_overflow_update() and isinstance(outputs, tuple):
            manager.update_loss_scale(bool(outputs[1]))
        call_all(listeners, "on_train_step_end", context)

    # ---- validation and prediction ------------------------------------------------------------

    def eval(
        self, valid_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = False
    ) -> dict[str, float]:
        """Validate.

        Args:
            valid_dataset: Batches, see :class:`ortboost.mindspore.train.batches.Batches`.
            callbacks: A callback or a list of them.
            dataset_sink_mode: Accepted without effect.

        Returns:
            Metric name to value.
        """
        check_argument("Model.eval", "dataset_sink_mode", dataset_sink_mode, bool)
        self._need_metrics("Model.eval")
        batches = self._batches(valid_dataset, "Model.eval")
        args = CallbackParam(network=self._backbone, valid_dataset=valid_dataset)
        with entered(callbacks) as listeners:
            return self._evaluate(batches, listeners, args)

    def _evaluate(
        self, batches: Batches, listeners: list[Callback], args: CallbackParam
    ) -> dict[str, float]:
        network: Any = self._eval_network  # exists if there are metrics
        for metric in self._metrics.values():
            metric.clear()
        losses = Loss()
        args |= {
            "mode": "eval",
            "batch_num": batches.size,
            "cur_step_num": 0,
            "eval_network": network,
            "net_outputs": None,
            "dataset_sink_mode": False,
            "list_callback": listeners,
        }
        context = RunContext(args)
        network.set_train(False)
        call_all(listeners, "on_eval_begin", context)
        call_all(listeners, "on_eval_epoch_begin", context)
        for batch in batches.epoch(0):
            args.cur_step_num += 1
            args.eval_dataset_element = batch
            call_all(listeners, "on_eval_step_begin", context)
            args.net_outputs = network(*batch)
            returned = args.net_outputs
            outputs = returned if isinstance(returned, tuple) else (returned,)
            for metric in self._metrics.values():
                self._feed(metric, outputs)
            if self._eval_indexes is not None:
                losses.update(np.mean(chosen(outputs, self._eval_indexes[:1])[0]))
            call_all(listeners, "on_eval_step_end", context)
            if context.get_stop_requested():
                break
        results = {name: metric.eval() for name, metric in self._metrics.items()}
        args.metrics = results
        args.eval_results = dict(results)
        if self._eval_indexes is not None:
            args.eval_results["eval_loss"] = losses.eval()
        call_all(listeners, "on_eval_epoch_end", context)
        call_all(listeners, "on_eval_end", context)
        return results

    def _feed(self, metric: Metric, outputs: tuple[Any, ...]) -> None:
        """Pass a metric its inputs among the outputs of the evaluation network."""
        if self._eval_indexes is None:
            metric.update(*outputs)
        else:
            loss, prediction, label = self._eval_indexes
            indexes = [loss] if isinstance(metric, Loss) else [prediction, label]
            metric.update(*chosen(outputs, indexes))

    def predict(self, *predict_data: Any) -> Tensor | tuple[Tensor, ...]:
        """Compute the network's outputs with the inference graph.

        Args:
            *predict_data: One array for each input.

        Raises:
            ArgumentTypeError, ArgumentValueError: The arrays do not fit.
        """
        result: Tensor | tuple[Tensor, ...] = self._backbone(*predict_data)
        return result

    def _need_metrics(self, owner: str) -> None:
        if not self._metrics:
            raise ArgumentValueError(
                "There are no metrics.",
                where=owner,
                fix="Give Model(metrics={'accuracy', 'loss'}).",
            )

    def _batches(self, dataset: Any, owner: str) -> Batches:
        return Batches(dataset, [spec.name for spec in self._backbone.inputs], owner)
