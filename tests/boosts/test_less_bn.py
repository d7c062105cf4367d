from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.boosts.less_bn import less_bn
from ortboost.core.errors import ConfigError
from ortboost.deploy.export import export_model
from ortboost.graph.io import load_model
from ortboost.graph.normalize import normalize
from ortboost.graph.weights.parameters import find_parameters
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.support import (
    ENGINES,
    assert_three_lines,
    batch_for,
    model_path,
    run,
    small_mlp,
    stepper,
    text_model,
    weights,
)

IMAGE = weights(2, 4, 6, 6, seed=7, scale=1.0)
ACTS = {
    "relu": "{y} = Relu({x})",
    "relu6": "{y} = Clip({x}, zero, six)",
    "leaky": "{y} = LeakyRelu<alpha = 0.1>({x})",
    "hardswish": "{y} = HardSwish({x})",
    # as written by the dynamo exporter without optimization
    "cast_relu6": "{y}l = CastLike(zero, {x}) {y}h = CastLike(six, {x}) {y} = Clip({x}, {y}l, "
    "{y}h)",
    "silu": "{y}s = Sigmoid({x}) {y} = Mul({x}, {y}s)",
    "silu_turned": "{y}s = Sigmoid({x}) {y} = Mul({y}s, {x})",
    # as exporters decomposed HardSwish before it was an operator
    "old_hardswish": "{y}a = Add({x}, three) {y}b = Clip({y}a, zero, six) "
    "{y}c = Div({y}b, six) {y} = Mul({x}, {y}c)",
}


class Net:
    """Builds a model with input ``x``, [batch, 4, h, w], by node; ``without`` omits norms."""

    def __init__(self, without=(), act="relu", bias=False, training=False, learned=False):
        self.without, self.kind, self.bias = set(without), act, bias
        self.training, self.learned = training, learned
        self.lines: list[str] = []
        self.inits = {
            "zero": np.float32(0),
            "six": np.float32(6),
            "three": np.float32(3),
        }
        self.types = ["float zero", "float six", "float three"]

    def init(self, name, value):
        if name not in self.inits:
            dims = ",".join(str(d) for d in value.shape)
            self.types.append(f"{'float' if value.dtype.kind == 'f' else 'int64'}[{dims}] {name}")
            self.inits[name] = value
        return name

    def conv(self, name, x, inputs, outputs, size=1, stride=1, group=1):
        seed = sum(map(ord, name))
        w = self.init(f"{name}_w", weights(outputs, inputs // group, size, size, seed=seed))
        more = f", {self.init(f'{name}_b', weights(outputs, seed=seed + 1))}" if self.bias else ""
        pads = ", ".join([str(size // 2)] * 4)
        self.lines.append(
            f"[{name}] {name} = Conv<pads = [{pads}], strides = [{stride}, {stride}], "
            f"group = {group}>({x}, {w}{more})"
        )
        return name

    def bn(self, name, x, channels, scale=None):
        if name in self.without:
            return x
        seed = sum(map(ord, name))
        ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        moved = weights(channels, seed=seed) if self.learned else zeros
        names = [
            scale or self.init(f"{name}_s", ones + 0.2 * moved),
            self.init(f"{name}_t", moved),
            # an exporter that runs the network moves the statistics of a fresh one too
            self.init(f"{name}_m", weights(channels, seed=seed + 1)),
            self.init(f"{name}_v", ones + 0.1 * np.abs(weights(channels, seed=seed + 2))),
        ]
        outputs = f"{name}, {name}_nm, {name}_nv" if self.training else name
        mode = "<training_mode = 1>" if self.training else ""
        self.lines.append(f"[{name}] {outputs} = BatchNormalization{mode}({x}, {', '.join(names)})")
        return name

    def act(self, name, x, kind=None):
        self.lines.append(ACTS[kind or self.kind].format(x=x, y=name))
        return name

    def node(self, text):
        self.lines.append(text)
        return text.partition("=")[0].split("]")[-1].strip()

    def add(self, name, a, b, turned=False):
        return self.node(f"[{name}] {name} = Add({f'{b}, {a}' if turned else f'{a}, {b}'})")

    def unit(self, name, x, inputs, outputs, size=1, stride=1, group=1, act=True):
        """Convolution, norm ``<name>n``, activation."""
        y = self.conv(f"{name}c", x, inputs, outputs, size, stride, group)
        y = self.bn(f"{name}n", y, outputs)
        return self.act(f"{name}a", y) if act else y

    def model(self, last, *more):
        outputs = ", ".join(f"float[batch,c{i},d{i},e{i}] {v}" for i, v in enumerate((last, *more)))
        used = " ".join(self.lines)
        types = [t for t in self.types if t.split()[-1] in used]
        return text_model(
            f'<ir_version: 10, opset_import: ["" : 18]> net (float[batch,4,h,w] x, '
            f"{', '.join(types)}) => ({outputs}) {{ {used} }}",
            **{t.split()[-1]: self.inits[t.split()[-1]] for t in types},
        )


def check(make, removed, kept=None, **options):
    """Rewrite, and compare with the model that was written without these norms."""
    model = make(Net(**options))
    report = less_bn(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert set(report.changed) == set(removed)
    assert any("removes nothing" in note for note in report.notes) == (not removed)
    left = [n.name for n in model.graph if n.op_type == "BatchNormalization"]
    assert left == list(report.kept)
    if kept is not None:
        assert set(report.kept) == set(kept)
    if not options.get("training"):
        bare = make(Net(**{**options, "without": removed}))
        want, have = run(bare, {"x": IMAGE}), run(model, {"x": IMAGE})
        assert want.keys() == have.keys()
        for name in want:
            np.testing.assert_array_equal(have[name], want[name])
        assert set(model.graph.initializers) == set(bare.graph.initializers)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    again = less_bn(model)
    assert not again.modified
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    return report


def stem(net, pool=False):
    y = net.unit("stem", "x", 4, 4, 3)
    return net.node(f"p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>({y})") if pool else y


def main_branch(net, kind, x, outputs=4, stride=1):
    if kind == "basic":
        y = net.unit("u1", x, 4, outputs, 3, stride)
        return net.unit("u2", y, outputs, outputs, 3, act=False)
    y = net.unit("u2", net.unit("u1", x, 4, 2), 2, 2, 3, stride)
    return net.unit("u3", y, 2, outputs, act=False)


RESIDUAL = {"basic": ({"u1n"}, {"u2n"}), "bottleneck": ({"u1n", "u2n"}, {"u3n"})}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("pool", [False, True], ids=["conv", "pool"])
@pytest.mark.parametrize("shortcut", ["identity", "projection", "bare", "pooled", "padded"])
@pytest.mark.parametrize("kind", RESIDUAL)
def test_residual_block(kind, shortcut, pool, turned):
    removed, kept = RESIDUAL[kind]
    stride = 1 if shortcut == "identity" else 2

    def make(net):
        x = stem(net, pool)
        y = main_branch(net, kind, x, 6 if shortcut == "padded" else 4, stride)
        if shortcut in ("projection", "bare"):
            x = net.conv("downc", x, 4, 4, 1, 2)
            x = net.bn("downn", x, 4) if shortcut == "projection" else x
        elif shortcut == "pooled":  # an average, then a projection that keeps the size
            x = net.node(
                "q = AveragePool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(" + x + ")"
            )
            x = net.unit("down", x, 4, 4, act=False)
        elif shortcut == "padded":
            x = net.node(f"q = MaxPool<kernel_shape = [1, 1], strides = [2, 2]>({x})")
            pads = net.init("pads", np.array([0, 1, 0, 0, 0, 1, 0, 0]))
            x = net.node(f"qp = Pad({x}, {pads})")
        return net.model(net.act("y", net.add("sum", y, x, turned)))

    gone = removed | ({"downn"} if shortcut in ("projection", "pooled") else set())
    report = check(make, gone, kept | {"stemn"})
    assert "in no residual or dense block" in report.kept["stemn"]
    assert report.kept[max(kept)] == "it precedes 'sum'"
    assert all("'sum'" in text for text in report.changed.values())


@pytest.mark.parametrize("act", ACTS)
def test_activations(act):
    def make(net):
        x = stem(net)
        y = net.add("sum", main_branch(net, "bottleneck", x), x)
        return net.model(net.act("y", y))

    check(make, {"u1n", "u2n"}, {"u3n", "stemn"}, act=act)


@pytest.mark.parametrize("training", [False, True])
def test_biased_convolutions_and_training_form(training):
    def make(net):
        x = stem(net)
        return net.model(net.add("sum", main_branch(net, "bottleneck", x), x))

    check(make, {"u1n", "u2n"}, {"u3n", "stemn"}, bias=True, training=training)


def test_a_block_of_groups():
    """ResNeXt: a grouped convolution of several channels per group is not depthwise."""

    def make(net):
        x = stem(net)
        y = net.unit("u1", x, 4, 8)
        y = net.unit("u2", y, 8, 8, 3, group=2)
        return net.model(net.add("sum", net.unit("u3", y, 8, 4, act=False), x))

    check(make, {"u1n", "u2n"}, {"u3n", "stemn"})


def test_blocks_in_a_row_and_dropout_within():
    def make(net):
        x = stem(net)
        for name in "ab":
            y = net.unit(f"{name}1", x, 4, 4, 3)
            y = net.node(f"{name}d = Dropout({y})")
            y = net.unit(f"{name}2", y, 4, 4, 3, act=False)
            x = net.act(f"{name}y", net.add(f"{name}sum", x, y))
        return net.model(x)

    check(make, {"a1n", "b1n"}, {"stemn", "a2n", "b2n"})


def test_the_stem_is_not_taken_for_a_block():
    """A projecting basic block right after the stem: MindSpore removes the stem's norm here."""

    def make(net):
        x = stem(net)
        y = main_branch(net, "basic", x, 6, 2)
        x = net.unit("down", x, 4, 6, 1, 2, act=False)
        return net.model(net.act("y", net.add("sum", y, x)))

    check(make, {"u1n", "downn"}, {"u2n", "stemn"})


def inverted(net, name, x, inputs, outputs, stride=1, expand=8):
    y = net.unit(f"{name}1", x, inputs, expand) if expand else x
    width = expand or inputs
    y = net.unit(f"{name}2", y, width, width, 3, stride, group=width)
    return net.unit(f"{name}3", y, width, outputs, act=False)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("act", ["relu6", "cast_relu6", "hardswish", "old_hardswish"])
def test_inverted_residuals(act, turned):
    def make(net):
        x = stem(net)
        x = net.add("sum", inverted(net, "a", x, 4, 4), x, turned)
        x = inverted(net, "b", x, 4, 6, stride=2)
        x = net.add("sum2", inverted(net, "c", x, 6, 6), x, turned)
        return net.model(net.unit("head", x, 6, 8))

    kept = {"stemn", "headn"} | {f"{block}{i}n" for block in "abc" for i in (1, 3)}
    report = check(make, {"a2n", "b2n", "c2n"}, kept, act=act)
    assert "(identity) at 'sum'" in report.changed["a2n"]
    assert "no shortcut" in report.changed["b2n"]
    assert report.kept["c3n"] == "it precedes 'sum2'"


def test_depthwise_separable_is_no_inverted_residual():
    """The stem is not an expansion; an activation after the last norm makes it another block."""

    def make(net):
        x = inverted(net, "a", stem(net), 4, 4, expand=0)
        y = net.unit("b1", x, 4, 8)
        y = net.unit("b2", y, 8, 8, 3, group=8)
        return net.model(net.unit("b3", y, 8, 4))

    check(make, set(), {"stemn", "a2n", "a3n", "b1n", "b2n", "b3n"}, act="relu6")


DENSE = ("norm first", "conv first", "act first")


def dense_layer(net, form, name, x, inputs):
    if form == "norm first":
        y = net.act(f"{name}1a", net.bn(f"{name}1n", x, inputs))
        y = net.conv(f"{name}1c", y, inputs, 6)
        y = net.act(f"{name}2a", net.bn(f"{name}2n", y, 6))
        return net.conv(f"{name}2c", y, 6, 2, 3)
    if form == "conv first":
        return net.unit(f"{name}2", net.unit(f"{name}1", x, inputs, 6), 6, 2, 3)
    y = net.act(f"{name}1a", net.conv(f"{name}1c", x, inputs, 6))
    y = net.conv(f"{name}2c", net.bn(f"{name}1n", y, 6), 6, 2, 3)
    return net.bn(f"{name}2n", net.act(f"{name}2a", y), 2)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("form", DENSE)
def test_dense_blocks(form, flat):
    def make(net):
        features = [stem(net)]
        x, width = features[0], 4
        for name in "abc":
            features.append(dense_layer(net, form, name, x, width))
            joined = ", ".join(features) if flat else f"{x}, {features[-1]}"
            x = net.node(f"[{name}j] {name}j = Concat<axis = 1>({joined})")
            width += 2
        x = net.act("ta", net.bn("tn", x, width))
        x = net.conv("tc", x, width, 5)
        return net.model(net.node(f"q = AveragePool<kernel_shape=[2,2], strides=[2,2]>({x})"))

    check(make, {"a1n", "b1n", "c1n"}, {"stemn", "tn", "a2n", "b2n", "c2n"})


def test_branches_side_by_side_are_no_dense_block():
    def make(net):
        x = stem(net)
        y = net.unit("u2", net.unit("u1", x, 4, 6), 6, 2, 3)
        z = net.unit("u3", x, 4, 2)
        return net.model(net.node(f"j = Concat<axis = 1>({y}, {z})"))

    check(make, set())


def preactivation(net):
    x = net.conv("c0", "x", 4, 4, 3)
    y = net.conv("u1c", net.act("u1a", net.bn("u1n", x, 4)), 4, 4, 3)
    y = net.conv("u2c", net.act("u2a", net.bn("u2n", y, 4)), 4, 4, 3)
    return net.model(net.add("sum", y, x))


def four_convolutions(net):
    x = y = stem(net)
    for name in ("u1", "u2", "u3"):
        y = net.unit(name, y, 4, 4, 3)
    return net.model(net.add("sum", net.unit("u4", y, 4, 4, act=False), x))


def a_strange_shortcut(net):
    x = stem(net)
    y = main_branch(net, "basic", x)
    return net.model(net.add("sum", y, net.unit("o", x, 4, 4)))


def a_constant(net):
    c = net.init("c", np.ones((4, 1, 1), np.float32))
    return net.model(net.add("sum", main_branch(net, "basic", stem(net)), c))


def squeeze_and_excite(net):
    x = stem(net)
    y = main_branch(net, "basic", x)
    g = net.node(f"g = GlobalAveragePool({y})")
    g = net.node(f"gs = Sigmoid({net.conv('gc', g, 4, 4)})")
    return net.model(net.add("sum", net.node(f"m = Mul({y}, {g})"), x))


def a_plain_chain(net):
    return net.model(net.unit("u2", net.unit("u1", "x", 4, 4, 3), 4, 4, 3))


def twice_itself(net):
    y = main_branch(net, "basic", stem(net))
    return net.model(net.add("sum", y, y))


@pytest.mark.parametrize(
    ("make", "norm", "reason"),
    [
        (preactivation, "u1n", "no known block ends at 'sum'"),
        (four_convolutions, "u1n", "no known block ends at 'sum'"),
        (a_strange_shortcut, "on", "its branches are 'conv bn act conv bn' and 'pointwise bn act'"),
        (a_constant, "u1n", "in no residual"),
        (squeeze_and_excite, "u1n", "in no residual"),
        (a_plain_chain, "u1n", "in no residual"),
        (twice_itself, "u1n", "in no residual"),
    ],
)
def test_no_block(make, norm, reason):
    report = check(make, set())
    assert reason in report.kept[norm]


def test_branches_of_two_sources():
    def make(net):
        y = main_branch(net, "basic", stem(net))
        other = net.node("z = Tanh(x)")
        other = net.node(f"zz = Mul({other}, {other})")
        return net.model(net.add("sum", y, other))

    report = check(make, set())
    assert report.kept["u2n"] == "the branches of 'sum' do not have a common input"


@pytest.mark.parametrize("where", ["output", "reader"])
def test_a_norm_that_is_read_elsewhere_stays(where):
    def make(net):
        x = stem(net)
        y = net.conv("u1c", x, 4, 4, 3)
        n = net.bn("u1n", y, 4)
        y = net.act("u1a", n)
        y = net.unit("u2", y, 4, 4, 3)
        y = net.unit("u3", y, 4, 4, act=False)
        s = net.add("sum", y, x)
        return net.model(s, n if where == "output" else net.node(f"aux = Tanh({n})"))

    report = check(make, {"u2n"}, {"u1n", "u3n", "stemn"})
    assert report.kept["u1n"] == "its output is used outside of the block"


def test_who_reads_only_the_shape_is_no_reader():
    def make(net):
        x = stem(net)
        n = net.bn("u1n", net.conv("u1c", x, 4, 4, 3), 4)
        y = net.unit("u2", net.act("u1a", n), 4, 4, 3, act=False)
        s = net.node(f"s = Shape({n})")
        return net.model(net.node(f"y = Expand({net.add('sum', y, x)}, {s})"))

    check(make, {"u1n"}, {"u2n", "stemn"})


def test_statistics_that_are_read_stay():
    def make(net):
        x = stem(net)
        y = net.unit("u1", x, 4, 4, 3)
        y = net.unit("u2", y, 4, 4, 3, act=False)
        return net.model(net.add("sum", y, x))

    model = make(Net(training=True))
    mean = next(v for node in model.graph for v in node.outputs if v.name == "u1n_nm")
    mean.type, mean.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([4])
    model.graph.outputs.append(mean)
    assert less_bn(model).kept["u1n"] == "its statistics are used"


def block(net):
    x = stem(net)
    return net.model(net.add("sum", main_branch(net, "bottleneck", x), x))


def test_a_frozen_norm_stays():
    model = block(Net())
    report = less_bn(model, frozen=lambda node: node.name == "u1n")
    assert set(report.changed) == {"u2n"}
    assert "frozen" in report.kept["u1n"]


def test_a_tensor_that_another_norm_reads_stays():
    """Exporters store equal tensors once."""

    def make(net):
        x = stem(net)
        y = net.conv("u1c", x, 4, 4, 3)
        y = net.act("u1a", net.bn("u1n", y, 4, scale="stemn_s"))
        y = net.unit("u2", y, 4, 4, 3, act=False)
        return net.model(net.add("sum", y, x))

    report = check(make, {"u1n"})
    assert "3 tensors (12 elements)" in report.notes[0]


def test_copies_of_shared_tensors_go_too():
    """The TorchScript exporter puts an Identity in front of a tensor that it stored once."""
    net = Net()
    x = stem(net)
    y = net.conv("u1c", x, 4, 4, 3)
    net.init("u1n_t", np.zeros(4, np.float32))
    net.init("u1n_m", np.zeros(4, np.float32))
    net.lines.append("copy = Identity(stemn_v)")
    net.lines.append(f"[u1n] n1 = BatchNormalization({y}, stemn_s, u1n_t, u1n_m, copy)")
    y = net.unit("u2", net.act("u1a", "n1"), 4, 4, 3, act=False)
    model = net.model(net.add("sum", y, x))
    assert set(less_bn(model).changed) == {"u1n"}
    assert "Identity" not in [node.op_type for node in model.graph]
    assert {"stemn_s", "stemn_v"} <= set(model.graph.initializers)
    assert not {"u1n_t", "u1n_m"} & set(model.graph.initializers)


@pytest.mark.parametrize("learned", [False, True])
def test_a_trained_network_is_pointed_out(learned):
    report = less_bn(block(Net(learned=learned)))
    assert any("train it again" in note for note in report.notes) == learned


def test_norms_that_an_exporter_folded_are_pointed_out():
    def make(net):
        return net.model(net.act("y", net.conv("c", "x", 4, 4, 3)))

    report = less_bn(make(Net()))
    assert not report.modified
    assert report.notes[0].startswith("less-bn removes nothing: the model has no ")
    assert "optimize=False" in report.notes[0]


def test_a_model_without_convolutions_is_told_that_nothing_changes():
    (note,) = less_bn(small_mlp()).notes
    assert note == "less-bn removes nothing: the model has no BatchNormalization"


def test_norms_that_an_exporter_folded_in_part_are_pointed_out():
    """Of a dense layer it folds the second one: what follows a convolution."""

    def make(net):
        x = stem(net)
        y = dense_layer(net, "norm first", "a", x, 4)
        joined = net.node(f"[j] j = Concat<axis = 1>({x}, {y})")
        return net.model(net.act("ta", net.bn("tn", joined, 6)))

    assert not any("optimize=False" in note for note in less_bn(make(Net())).notes)
    report = less_bn(make(Net(without={"stemn", "a2n"})))
    assert not report.modified
    assert report.notes[0].startswith("less-bn removes nothing: the model has no ")
    assert "optimize=False" in report.notes[0]


@pytest.mark.parametrize(
    ("name", "removed", "kept"),
    [("resnet20", 11, 10), ("resnet_bottleneck", 13, 6), ("mobilenet_like", 4, 10), ("mlp", 0, 0)],
)
def test_shipped_models(name, removed, kept):
    model = load_model(model_path(name))
    normalize(model, opsets=range(18, 22), ir_version=10)
    before = sum(p.size for p in find_parameters(model).values())
    report = less_bn(model)
    assert (len(report.changed), len(report.kept)) == (removed, kept)
    assert "/bn1/BatchNormalization" not in report.changed  # the stem of the ResNets
    lost = before - sum(p.size for p in find_parameters(model).values())
    assert [f"({lost} elements)" in note for note in report.notes] == [bool(removed)]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["resnet20", "resnet_bottleneck", "mobilenet_like"])
def test_programs_train_and_export(name, engine):
    config = ProgramConfig.from_dict({"less_bn": True, "full_norm_head": True, "engine": engine})
    assert ProgramConfig.from_dict(config.to_dict()) == config
    program = build_program(model_path(name), config)
    rewrites = {report.rewrite: report for report in program.reports}
    gone = set(rewrites["less_bn"].changed)
    graphs = [program.step, program.evaluation]
    assert not gone & {node.name for graph in graphs for node in graph.graph.all_nodes()}
    states = [entry.name for entry in program.catalogue.state]
    first = "bn2" if name == "mobilenet_like" else "bn1"
    assert not [s for s in states if f".{first}." in s]
    assert "fc.multiplier" in states
    assert "fc.bias" not in states
    training = stepper(program)
    feeds = batch_for(program, 4)
    losses = [float(training.step(feeds, {"learning_rate": 0.05}).loss) for _ in range(20)]
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.5 * losses[0]
    state = training.state()
    assert state["fc.multiplier"] > 1.0
    exported = export_model(program, state)
    x = {"x": feeds["x"]}
    want = run(
        program.evaluation, {**feeds, **{n: v for n, v in state.items() if n in _inputs(program)}}
    )
    np.testing.assert_allclose(
        run(exported.model, x)["logits"], want["logits"], rtol=1e-4, atol=1e-4
    )
    done = {report.rewrite for report in exported.reports if report.changed}
    assert {"fold_bn", "fold_full_norm"} <= done
    assert "BatchNormalization" not in {node.op_type for node in exported.model.graph}


def _inputs(program):
    return {value.name for value in program.evaluation.graph.inputs}


def test_a_pattern_of_frozen_norms_keeps_them():
    program = build_program(
        model_path("resnet_bottleneck"),
        ProgramConfig(less_bn=True, frozen_norm=("layer1.0.bn1.*",), engine="portable"),
    )
    report = next(r for r in program.reports if r.rewrite == "less_bn")
    assert "frozen" in report.kept["/layer1/layer1.0/bn1/BatchNormalization"]
    assert len(report.changed) == 12


@pytest.mark.parametrize("key", ["less_bn", "full_norm_head"])
def test_on_or_off(key):
    with pytest.raises(ConfigError) as error:
        ProgramConfig.from_dict({key: "yes"})
    assert_three_lines(error.value)
