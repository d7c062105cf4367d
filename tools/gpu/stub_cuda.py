"""Stubs of the CUDA libraries, for sessions of onnxruntime's CUDA provider without a GPU.

Every call succeeds and does nothing; device memory is host memory, copies copy. The provider then
reports the nodes that it would run and the copies that it would make (``tools/gpu/placement.py``).
**Do not run a model with it:** kernels are not launched, and results are uninitialized memory.

Needs gcc, nm and readelf. The names and versions of the stubs come from the imports of the
provider's library.

Example::

    python tools/gpu/stub_cuda.py ENV/lib/python3.13/site-packages/onnxruntime stub
    LD_LIBRARY_PATH=stub ENV/bin/python tools/gpu/placement.py record step.onnx -o placement.json
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_PREAMBLE = "#include <stdlib.h>\n#include <string.h>\nstatic char dummy[4096];\n"
_POINTER = "int NAME(void **p){if(p)*p=dummy;return 0;}"
_NOTHING = "int NAME(void){return 0;}"
_MALLOC = "int NAME(void **p,size_t n){*p=malloc(n+256);return 0;}"
_FREE = "int NAME(void *p){free(p);return 0;}"
_COPY = "int NAME(void *d,const void *s,size_t n){memcpy(d,s,n);return 0;}"
_FILL = "int NAME(void *d,int v,size_t n){memset(d,v,n);return 0;}"
_TEXT = 'const char *NAME(int e){return "stand-in";}'
_VERSION = "int NAME(int *p){*p=13000;return 0;}"
_BODIES = {
    "cudaGetDeviceCount": "int NAME(int *p){*p=1;return 0;}",
    "cudaGetDevice": "int NAME(int *p){*p=0;return 0;}",
    "cudaGetDeviceProperties": 'int NAME(char *p){memset(p,0,700);strcpy(p,"stand-in");return 0;}',
    "cudaDeviceGetAttribute": "int NAME(int *p){*p=0;return 0;}",
    "cudaFuncGetAttributes": "int NAME(char *p){memset(p,0,56);return 0;}",
    "cudaMemGetInfo": "int NAME(size_t *a,size_t *b){*a=*b=(size_t)64<<30;return 0;}",
    "__cudaRegisterFatBinary": "void *NAME(void *p){return dummy;}",
    "cudnnGetVersion": "size_t NAME(void){return 90000;}",
    **dict.fromkeys(("cudaMalloc", "cudaMallocHost", "cudaHostAlloc"), _MALLOC),
    **dict.fromkeys(("cudaFree", "cudaFreeHost"), _FREE),
    **dict.fromkeys(("cudaMemcpy", "cudaMemcpyAsync"), _COPY),
    **dict.fromkeys(("cudaMemset", "cudaMemsetAsync"), _FILL),
    **dict.fromkeys(("cudaGetErrorString", "cudaGetErrorName"), _TEXT),
    **dict.fromkeys(("cudaRuntimeGetVersion", "cudaDriverGetVersion"), _VERSION),
}
# 1.19 opens the driver by hand and looks for these.
_DRIVER = ("GetErrorName", "FuncSetAttribute", "LinkComplete", "ModuleUnload", "LinkDestroy")
_DRIVER += (
    "ModuleLoadData",
    "LinkCreate_v2",
    "ModuleGetFunction",
    "LinkAddFile_v2",
    "LinkAddData_v2",
)
_DRIVER += ("LaunchCooperativeKernel", "LaunchKernel", "DeviceGetAttribute", "FuncSetCacheConfig")


def make_stubs(onnxruntime: Path, out: Path) -> None:
    """Write the stand-ins for an installed onnxruntime with CUDA into a folder."""
    library = onnxruntime / "capi" / "libonnxruntime_providers_cuda.so"
    out.mkdir(parents=True, exist_ok=True)
    needed = re.findall(r"\[(libcu\S+)\]", _output("readelf", "-d", library))
    names: dict[str, set[str]] = {soname: set() for soname in (*needed, "libcuda.so.1")}
    names["libcuda.so.1"] |= {f"cu{name}" for name in _DRIVER}
    for name, soname in re.findall(r"\bU (\w+)(?:@+(\S+))?$", _output("nm", "-D", library), re.M):
        if soname in names:
            names[soname].add(name)
        elif not soname and re.match(r"cu[A-Z]", name):
            names["libcuda.so.1"].add(name)
    for soname, wanted in names.items():
        _build(
            out, soname, sorted(wanted), versioned=soname in needed and "libcuda.so" not in soname
        )
    (out / "libcuda.so").unlink(missing_ok=True)
    (out / "libcuda.so").symlink_to("libcuda.so.1")


def _build(out: Path, soname: str, names: list[str], *, versioned: bool) -> None:
    code = [_PREAMBLE]
    for name in names:
        body = _BODIES.get(name, _POINTER if "Create" in name else _NOTHING)
        code.append(body.replace("NAME", name))
    source, script = out / f"{soname}.c", out / f"{soname}.map"
    source.write_text("\n".join(code) + "\n", encoding="utf-8")
    shown = f"global: {' '.join(f'{name};' for name in names)} " if names else ""
    script.write_text(f"{soname} {{ {shown}local: *; }};\n", encoding="utf-8")
    command = ["gcc", "-w", "-O1", "-fPIC", "-shared", f"-Wl,-soname,{soname}"]
    command += [f"-Wl,--version-script,{script}"] if versioned else []
    subprocess.run([*command, "-o", str(out / soname), str(source)], check=True)
    source.unlink()
    script.unlink()


def _output(*command: object) -> str:
    return subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    make_stubs(Path(sys.argv[1]), Path(sys.argv[2]))
