import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.boosts import Clip, GradAccumulation, GradCentralization, LossScale, Thor
from ortboost.core.loss_scale import NO_SCALE
from ortboost.optimizers import Adam, AdamW, Lars, Momentum
from ortboost.runtime import peepholes
from ortboost.runtime.cpu import chunks
from tests.autodiff.oracle import graph, random_feeds
from tests.support import assert_same_bits, batch_for, run, shipped_program, stepper

MOMENTUM = """a = Mul(m, c9) b = Mul(g, u) m2 = Add(a, b) d = Mul(m2, u) w2 = Sub(w, d)"""
ACTIVATION = "a = Mul(x, x) b = Neg(a) c = Exp(b) y = Mul(c, x)"
HEAD = "g (float[6,64] w, float[6,64] m, float[6,64] g, float u, float[1] c9, bool c)"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(chunks, "_PART", 16)


def scans(model):
    return [node for node in model.graph.all_nodes() if node.op_type == "Scan"]


def chunked(model, states=()):
    changed = model.clone()
    assert chunks.chunked_chains(changed, states, 1)
    onnx.checker.check_model(ir.to_proto(changed))
    return changed


def assert_same_numbers(model, changed, **more):
    feeds = {**random_feeds(model), **more}
    expected, found = run(model, feeds), run(changed, feeds)
    assert list(expected) == list(found)
    assert_same_bits(expected, {k: found[k].reshape(v.shape) for k, v in expected.items()})


def gated(body=MOMENTUM, then="w2, m2", otherwise="w3 = Identity(w) m3 = Identity(m)"):
    first, second = (name.strip() for name in then.split(","))
    return graph(
        f"""{HEAD} => (float[6,64] w_next, float[6,64] m_next) {{
        w_next, m_next = If(c) <
          then_branch = t () => (float[6,64] {first}, float[6,64] {second}) {{ {body} }},
          else_branch = e () => (float[6,64] w3, float[6,64] m3) {{ {otherwise} }}> }}"""
    )


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("states", [(), ("w_next",), ("w_next", "m_next")])
def test_an_update_behind_a_gate(taken, states):
    model = gated()
    changed = chunked(model, states)
    (scan,) = scans(changed)
    assert len(scan.outputs) == 2
    shapes = {value.name: tuple(value.shape.numpy()) for value in changed.graph.outputs}
    for name, shape in shapes.items():
        assert shape == ((24, 16) if name in states else (6, 64))
    assert_same_numbers(model, changed, c=np.array(taken))


def test_what_lies_between_ends_a_chain():
    """The norm needs all of the gradient: before and after it are two Scans."""
    model = graph(
        """g (float[8,32] w, float[8,32] g, float u) => (float[8,32] y, float[8,32] z) {
        a = Mul(g, u) s = Mul(a, a) n = ReduceSum<keepdims = 0>(s) r = Sqrt(n)
        q = Div(a, r) y = Sub(w, q) z = Add(y, s) }"""
    )
    changed = chunked(model, ("y", "z"))
    assert len(scans(changed)) == 2
    assert_same_numbers(model, changed)


def test_a_result_that_others_read_keeps_its_shape_for_them():
    model = graph(
        """g (float[8,32] w, float[8,32] g) => (float[8,32] y, float[32,8] t, float[8] s) {
        a = Mul(g, g) y = Add(w, a) t = Transpose<perm = [1, 0]>(y)
        k = Constant<value = int64[1] {1}>() s = ReduceSum<keepdims = 0>(a, k) }"""
    )
    changed = chunked(model)
    assert [o.name for o in changed.graph.outputs] == ["y", "t", "s"]
    assert_same_numbers(model, changed)


def test_one_gradient_read_by_two_chains_is_read_once():
    model = graph(
        """g (float[8,32] v, float[8,32] m, float[8,32] g) => (float[8,32] a, float[8,32] b) {
        q = Mul(g, g) a = Add(v, q) p = Neg(m) b = Sub(p, g) }"""
    )
    (scan,) = scans(chunked(model))
    assert len(scan.inputs) == 3


@pytest.mark.parametrize(
    "body",
    [
        "float[8,32] x) => (float[8,32] y) { y = Neg(x) }",
        "float[N,32] x) => (float[N,32] y) { a = Neg(x) y = Abs(a) }",
        "float[8,8] x) => (float[8,8] y) { a = Neg(x) y = Abs(a) }",
        f"float[N,16] x) => (float[N,16] y) {{ {ACTIVATION} }}",
        "float[509] x) => (float[509] y) { a = Neg(x) y = Abs(a) }",
        "float[8,32] x, float[32] b) => (float[8,32] y) { a = Add(x, b) y = Mul(a, b) }",
        "float[8,32] x, float[1,1,1] b) => (float[1,8,32] y) { a = Add(x, b) y = Mul(a, b) }",
        "float[8,32] x) => (float[8,32] y) { a = Softmax(x) y = Abs(a) }",
    ],
    ids=["one", "symbolic", "small", "small samples", "prime", "broadcast", "more rank", "rows"],
)
def test_what_is_left_alone(body):
    assert not chunks.chunked_chains(graph(f"g ({body}"), (), 1)


@pytest.mark.parametrize("text", ["N,32", "N,4,16", "N,T,16", "N,16,T", "N,T,48", "N,T,80"])
@pytest.mark.parametrize("lengths", [(1, 1), (2, 3), (4, 8), (3, 5), (0, 4)])
def test_activations_are_cut_along_what_is_known(text, lengths):
    """One symbolic length or two, odd and even numbers of rows, an empty batch."""
    model = graph(f"g (float[{text}] x) => (float[{text}] y) {{ {ACTIVATION} }}")
    changed = chunked(model)
    assert len(scans(changed)) == 1
    named = dict(zip("NT", lengths, strict=True))
    shape = [
        named.get(length) or int(length if length.isdigit() else 0) for length in text.split(",")
    ]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    assert_same_bits(run(model, {"x": x}), run(changed, {"x": x}))


@pytest.mark.parametrize(("rows", "joined"), [(1, 1), (6, 2), (12, 4), (64, 8), (7, 1)])
def test_rows_are_joined_up_to_the_desired_part(rows, joined, monkeypatch):
    monkeypatch.setattr(chunks, "_PART", 8 * 16)
    model = graph(f"g (float[N,T,16] x) => (float[N,T,16] y) {{ {ACTIVATION} }}")
    changed = chunked(model)
    (scan,) = scans(changed)
    changed.graph.outputs.append(scan.outputs[0])
    found = run(changed, {"x": np.zeros((1, rows, 16), np.float32)})
    assert found[scan.outputs[0].name].shape == (rows // joined, joined * 16)


FORWARD = "a = Mul(x, u) b = Neg(a) c = Exp(b) y = Mul(c, x) s = Softmax(y)"


def test_what_a_later_chain_could_compute_itself_is_not_stored():
    """As for a Gelu and its gradient: `a` and `c` follow from `x`, which both read."""
    model = graph(
        f"""g (float[N,64] x, float[N,64] g) => (float[N,64] s, float[N,64] z) {{
        u = Constant<value = float {{0.5}}>() {FORWARD}
        d = Softmax(s) p = Mul(d, c) q = Mul(p, a) r = Add(q, x) z = Sub(r, g) }}"""
    )
    changed = chunked(model)
    first, second = scans(changed)
    assert (len(first.inputs), len(first.outputs)) == (1, 1)
    assert (len(second.inputs), len(second.outputs)) == (3, 1)
    x, g = np.random.default_rng(0).standard_normal((2, 6, 64)).astype(np.float32)
    assert_same_bits(run(model, {"x": x, "g": g}), run(changed, {"x": x, "g": g}))


@pytest.mark.parametrize(
    ("inputs", "first", "last", "read"),
    [
        ("float[N,64] x, float[N,64] w", "Mul(x, w)", "Abs(r)", 2),
        ("float[8,64] x, float[8,64] w", "Mul(x, x)", "Mul(r, x)", 3),
        ("float[N,64] x, float u", "Mul(x, u)", "Mul(r, x)", 3),
    ],
    ids=["no fewer tensors", "may be a state", "the scalar may be a state"],
)
def test_what_is_stored_all_the_same(inputs, first, last, read):
    shape = "8,64" if "8,64" in inputs else "N,64"
    model = graph(
        f"""g ({inputs}) => (float[{shape}] z) {{
        a = {first} b = Neg(a) c = Exp(b) y = Mul(c, x) s = Softmax(y)
        p = Mul(s, c) q = Neg(p) r = Exp(q) z = {last} }}"""
    )
    before, after = scans(chunked(model))
    assert len(before.outputs) == 2
    assert len(after.inputs) == read


@pytest.mark.parametrize("op_type", ["Erf", "Sigmoid", "Tanh"])
def test_an_activation_and_its_gradient_have_the_same_bits(op_type):
    model = graph(
        f"""g (float[64,96] x, float[64,96] g, float c) => (float[64,96] y, float[64,96] d) {{
        s = Mul(x, c) e = {op_type}(s) a = Add(e, c) y = Mul(x, a)
        q = Mul(s, s) n = Neg(q) p = Exp(n) b = Mul(p, g) h = Mul(a, g) d = Add(b, h) }}"""
    )
    changed = chunked(model)
    assert {node.op_type for node in changed.graph} == {"Reshape", "Scan"}
    assert_same_numbers(model, changed)


def test_more_threads_take_larger_parts():
    model = graph("g (float[64,64] x) => (float[64,64] y) { a = Neg(x) y = Abs(a) }")
    for threads, part in ((1, 16), (4, 64)):
        changed = model.clone()
        assert chunks.chunked_chains(changed, (), threads)
        assert scans(changed)[0].outputs[0].shape.numpy()[1] == part


@pytest.mark.parametrize(
    "config",
    [
        {"optimizer": Momentum(nesterov=True), "weight_decay": 0.01},
        {"optimizer": Adam(amsgrad=True)},
        {"optimizer": AdamW(), "weight_decay": 0.1, "clip": Clip("global-norm", 1.0)},
        {"optimizer": Lars()},
        {"boosts": (GradAccumulation(2), GradCentralization(), LossScale())},
        {"boosts": (Thor(frequency=2), LossScale())},
        {"loss_scale": NO_SCALE, "check_finite": False},
    ],
    ids=lambda config: "-".join(config),
)
def test_training_gives_the_same_bits(config, monkeypatch):
    """Five steps, the third of which overflows; states in place and not."""
    program = shipped_program("lenet5", **config)
    one, again = stepper(program), stepper(program, in_place=False)
    assert any(
        node.op_type == "Scan"
        for node in peepholes.for_device(program.step, "cpu", threads=1).graph.all_nodes()
    )
    monkeypatch.setattr(peepholes, "chunked_chains", lambda *_: False)
    plain = stepper(program)
    for number in range(5):
        feeds = batch_for(program, seed=number)
        if number == 2:
            feeds[program.catalogue.batch[0].name] *= np.float32(1e38)
        answers = [s.step(feeds, {"learning_rate": 0.01}) for s in (one, again, plain)]
        assert len({(np.float64(a.loss).tobytes(), a.overflow) for a in answers}) == 1
    assert_same_bits(plain.state(), one.state())
    assert_same_bits(plain.state(), again.state())
