import onnx
import onnx_ir as ir
import pytest

from ortboost.runtime.cpu.expand import expand_by_products
from tests.autodiff.oracle import graph, random_feeds
from tests.runtime.cpu.forms import assert_same, operators

EXPAND = (
    "g (float[{have}] x, int64[{rank}] s) => (float[{want}] y) {{ e = Expand(x, s) y = Neg(e) }}"
)


def model(have: str, want: str) -> ir.Model:
    """Expand whose result has the shape that a gradient rule knew."""
    made = graph(EXPAND.format(have=have, want=want, rank=len(want.split(","))))
    shape = made.graph.outputs[0].shape
    next(node for node in made.graph if node.op_type == "Expand").outputs[0].shape = shape
    return made


@pytest.mark.parametrize(
    ("have", "want"), [("N,5,1,1", "N,5,3,2"), ("4,5,1", "4,5,7"), ("N,2,1,1,1", "N,2,2,1,3")]
)
@pytest.mark.parametrize("batch", [0, 4])
def test_a_product_with_ones(have, want, batch):
    made = model(have, want)
    if "N" not in have and batch != 4:
        pytest.skip("its batch is known")
    feeds = random_feeds(made, N=batch)
    feeds["s"] = ir.tensor([batch, *(int(d) for d in want.split(",")[1:])]).numpy().astype("int64")
    changed = assert_same(made, expand_by_products, feeds, tolerance=0.0)
    assert "Expand" not in operators(changed)
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)


@pytest.mark.parametrize(
    ("have", "want"),
    [("N,1,1,1", "N,5,3,2"), ("1,5,1,1", "N,5,3,2"), ("N,5,1,1", "N,5,H,2"), ("N,5", "N,5")],
)
def test_other_forms_are_left_alone(have, want):
    assert not expand_by_products(model(have, want))
