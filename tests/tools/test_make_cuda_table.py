import json

from tools.make_cuda_table import dump, from_docs, from_listing, host_memory, make, registrations

DOCS = """## Operators implemented by CUDAExecutionProvider

|**Operator Domain:** *ai.onnx*||||
|Abs|*in* X:**T**|13+|**T** = tensor(double), tensor(float)|
|||[6, 12]|**T** = tensor(float)|
|||5|**T** = tensor(float)|
|Cast|*in* input:**T1**|9+|**T1** = tensor(bool)<br/> **T2** = tensor(float), tensor(bool)|
|**Operator Domain:** *com.microsoft*||||
|Gelu|*in* X:**T**|1+|**T** = tensor(float)|
|**Operator Domain:** *com.other*||||
|Other|*in* X:**T**|1+|**T** = tensor(float)|
"""
SOURCE = r"""
ONNX_OPERATOR_VERSIONED_KERNEL_EX(Reshape, kOnnxDomain, 5, 12, kCudaExecutionProvider,
    (*KernelDefBuilder::Create())
        .InputMemoryType(OrtMemTypeCPUInput, 1)  // .InputMemoryType(OrtMemTypeCPUInput, 7)
        .TypeConstraint("T", DataTypeImpl::AllFixedSizeTensorTypes()), Reshape);
ONNX_OPERATOR_KERNEL_EX(Shape, kOnnxDomain, 13, kCudaExecutionProvider,
    (*KernelDefBuilder::Create()).OutputMemoryType(OrtMemTypeCPUInput, 0), Shape);
#define REDUCE(name, T)                                    \
  ONNX_OPERATOR_TYPED_KERNEL_EX(name, kOnnxDomain, 18, T, kCudaExecutionProvider, \
      (*KernelDefBuilder::Create()).InputMemoryType(OrtMemTypeCPUInput, 1), name<T>);
REDUCE(ReduceMax, float)
REDUCE(ReduceMin, float)
"""


def test_documents(tmp_path):
    (tmp_path / "kernels.md").write_text(DOCS)
    found = [(op, row) for _, op, row in from_docs(tmp_path / "kernels.md")]
    assert [(op, row[:2]) for op, row in found] == [
        ("Abs", (13, 2**31 - 1)),
        ("Abs", (6, 12)),
        ("Abs", (5, 5)),
        ("Cast", (9, 2**31 - 1)),
        ("com.microsoft::Gelu", (1, 2**31 - 1)),
    ]
    assert found[3][1][2] == {"T1": {"bool"}, "T2": {"float", "bool"}}


def test_operands_in_host_memory(tmp_path):
    folder = tmp_path / "onnxruntime" / "core" / "providers" / "cuda"
    folder.mkdir(parents=True)
    (folder / "some.cc").write_text(SOURCE)
    assert len(list(registrations(tmp_path))) == 4
    assert host_memory(tmp_path) == {
        "Reshape": [(5, (1,), ())],
        "Shape": [(13, (), (0,))],
        "ReduceMax": [(18, (1,), ())],
        "ReduceMin": [(18, (1,), ())],
    }


def test_kernels_that_differ_in_one_type_are_one_row(tmp_path):
    listed = [
        ["CUDAExecutionProvider", "", "Reshape", 5, 12, json.dumps({"T": [f"tensor({kind})"]})]
        for kind in ("float", "double")
    ]
    listed.append(["CUDAExecutionProvider", "ai.onnx.ml", "Scaler", 1, 2, "{}"])
    listed.append(["CPUExecutionProvider", "", "Reshape", 5, 2**31 - 1, "{}"])
    (tmp_path / "listing.json").write_text(json.dumps(listed))
    found = list(from_listing(tmp_path / "listing.json"))
    data = make("1.0", found, {"Reshape": [(1, (), ()), (5, (1,), ())]})
    assert data["cuda"] == {"Reshape": [[5, 12, {"T": 0}, [1], []]]}
    assert data["cpu"] == {"Reshape": [[5, None, {}]]}
    assert data["types"] == ["double float"]
    assert json.loads(dump({**data, "source": {}})) == {**data, "source": {}}
