"""A program to begin with: it compiles, takes one task's shapes and parameters, and computes nothing yet."""

import math
import re
from collections.abc import Sequence

from stitch_tools.models.task import ReferenceFacts, Task, TensorSpec

_C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "bool": "bool",
    "complex64": "float",
    "complex128": "double",
    "float8_e4m3fn": "uint8_t",
    "float8_e5m2": "uint8_t",
}
_HALF = "uint16_t"
"""Bits of float16 and bfloat16: C++17 has no type for them."""
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
_FLOAT8_CODES = {"float8_e4m3fn": 10, "float8_e5m2": 12}
_DTYPE = re.compile(r"([a-z]+)(\d*)")


def skeleton(task: Task, facts: ReferenceFacts) -> str:
    """Source of the program: `program.cpp` for a CPU, `program.cu` for a GPU."""
    names = _members(facts.parameters)
    parts = [
        _head(task, facts),
        _handle(facts.parameters, names),
        _init(facts.parameters, names),
        _plan(facts),
        _forward(task, facts),
        _TAIL,
    ]
    return "\n".join(parts)


def _head(task: Task, facts: ReferenceFacts) -> str:
    lines = [
        f"// Task {_plain(task.name)}, target {task.target}. Fill in stitch_forward; rules: stitch://abi"
    ]
    for word, specs in (("input", facts.inputs), ("output", facts.outputs)):
        lines += [f"//   {word} {place} {_described(spec)}" for place, spec in enumerate(specs)]
    includes = ["#include <cstring>", "#include <string>"]
    includes += ["", "#include <cuda_runtime.h>"] if task.target != "cpu" else []
    return "\n".join([*lines, *includes, "", '#include "stitch/abi.h"', "", _HELPERS])


_HELPERS = """namespace {
template <typename T>
T* data_of(const DLTensor& tensor) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

// Whether a tensor has this shape and these strides; NULL stands for dense ones.
[[maybe_unused]] bool has_layout(const DLTensor& tensor, int32_t ndim, const int64_t* shape,
                                 const int64_t* strides) {
  if (tensor.ndim != ndim) return false;
  int64_t dense = 1;
  for (int32_t axis = ndim - 1; axis >= 0; --axis) {
    const int64_t stride = tensor.strides ? tensor.strides[axis] : dense;
    if (tensor.shape[axis] != shape[axis]) return false;
    if (shape[axis] > 1 && stride != strides[axis]) return false;
    dense *= shape[axis];
  }
  return true;
}
}  // namespace
"""


def _handle(parameters: Sequence[TensorSpec], names: Sequence[str]) -> str:
    rows = [
        f"  const {_c_type(spec)}* {name} = nullptr;  // {_described(spec)}"
        for spec, name in zip(parameters, names, strict=True)
    ]
    return "\n".join(["struct StitchHandle {", "  std::string error;", *rows, "};", "", _VERSION])


_VERSION = """int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }
"""


def _init(parameters: Sequence[TensorSpec], names: Sequence[str]) -> str:
    argument = " args" if parameters else ""
    lines = [
        "// Parameters stay valid: repack here what forward wants in another layout.",
        f"int32_t stitch_init(const StitchInitArgs*{argument}, StitchHandle** handle) {{",
        "  StitchHandle* made = *handle = new StitchHandle;",
    ]
    if parameters:
        lines += [
            "  for (int64_t i = 0; i < args->num_params; ++i) {",
            "    const char* name = args->params[i].name;",
            "    const DLTensor& tensor = args->params[i].tensor;",
        ]
        lines += [
            f'    if (!std::strcmp(name, "{_plain(spec.name)}")) made->{member} = '
            f"data_of<const {_c_type(spec)}>(tensor);"
            for spec, member in zip(parameters, names, strict=True)
        ]
        missing = " || ".join(f"!made->{member}" for member in names)
        lines += ["  }", f'  if ({missing}) return made->error = "a parameter is missing", STITCH_ERROR;']
    else:
        lines.append("  (void)made;")
    return "\n".join([*lines, "  return STITCH_OK;", "}", ""])


def _plan(facts: ReferenceFacts) -> str:
    lines = [
        "// Accepts the task's own shapes alone, which marks the program `specialized`: let other leading",
        "// sizes through where forward takes them.",
        "int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t num_inputs,",
        "                    StitchPlan* plan) {",
        f"  bool fits = num_inputs == {len(facts.inputs)} && plan->capacity >= {len(facts.outputs)};",
    ]
    for place, spec in enumerate(facts.inputs):
        lines += [
            f"  const int64_t shape_{place}[] = {{{_numbers(spec.shape) or 1}}};",
            f"  const int64_t strides_{place}[] = {{{_numbers(_strides(spec)) or 1}}};",
            f"  fits = fits && has_layout(inputs[{place}], {len(spec.shape)}, shape_{place},"
            f" strides_{place});",
        ]
    lines += [
        '  if (!fits) return handle->error = "other shapes or strides than the task\'s", STITCH_UNSUPPORTED;',
        f"  plan->num_outputs = {len(facts.outputs)};",
    ]
    for place, spec in enumerate(facts.outputs):
        code, bits = _dlpack(spec.dtype)
        lines += [
            f"  plan->outputs[{place}].ndim = {len(spec.shape)};",
            f"  plan->outputs[{place}].dtype = {{{code}, {bits}, 1}};  // {spec.dtype}",
        ]
        lines += [f"  plan->outputs[{place}].shape[{axis}] = {size};" for axis, size in enumerate(spec.shape)]
    ends = ["  plan->workspace_bytes = 0;  // scratch memory that forward finds in args->workspace"]
    return "\n".join([*lines, *ends, "  plan->flags = 0;", "  return STITCH_OK;", "}", ""])


def _forward(task: Task, facts: ReferenceFacts) -> str:
    lines = ["int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {"]
    for word, specs, const in (("input", facts.inputs, "const "), ("output", facts.outputs, "")):
        lines += [
            f"  auto* {word}_{place} = data_of<{const}{_c_type(spec)}>(args->{word}s[{place}]);"
            f"  // {spec.dtype}[{_numbers(spec.shape)}]"
            for place, spec in enumerate(specs)
        ]
    unused = ", ".join(["handle", *(f"input_{place}" for place in range(len(facts.inputs)))])
    lines.append("".join(f"  (void){name};" for name in unused.split(", ")) + "  // YOURS: the computation")
    for place, spec in enumerate(facts.outputs):
        if task.target == "cpu":
            lines.append(f"  std::memset(output_{place}, 0, {spec.nbytes});")
        else:
            lines.append(
                f"  if (cudaMemsetAsync(output_{place}, 0, {spec.nbytes}, "
                "static_cast<cudaStream_t>(args->stream)) != cudaSuccess) return STITCH_ERROR;"
            )
    return "\n".join([*lines, "  return STITCH_OK;", "}", ""])


_TAIL = """const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
"""


def _members(parameters: Sequence[TensorSpec]) -> list[str]:
    """A C++ name for each parameter, different from each other."""
    names: list[str] = []
    for place, spec in enumerate(parameters):
        name = re.sub(r"\W", "_", spec.name, flags=re.ASCII).strip("_") or "parameter"
        # Names of the module are a stranger's: a number makes any of them a new identifier.
        names.append(f"p{place}_{name[:60]}")
    return names


def _described(spec: TensorSpec) -> str:
    strided = f", strides {list(spec.stride)}" if spec.stride is not None else ""
    return f"{_plain(spec.name)}: {spec.dtype}[{_numbers(spec.shape)}]{strided}"


def _plain(name: str) -> str:
    """A name as it may stand in a comment or string: what could end either is left out."""
    return re.sub(r"[^\w.\-]", "_", name, flags=re.ASCII)


def _numbers(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


def _strides(spec: TensorSpec) -> Sequence[int]:
    """In elements; dense ones where none were observed."""
    dense = [math.prod(spec.shape[axis + 1 :]) for axis in range(len(spec.shape))]
    return spec.stride if spec.stride is not None else dense


def _c_type(spec: TensorSpec) -> str:
    return _C_TYPES.get(spec.dtype, _HALF)


def _dlpack(dtype: str) -> tuple[int, int]:
    """Type code and bits of an element."""
    if dtype in _FLOAT8_CODES:
        return _FLOAT8_CODES[dtype], 8
    match = _DTYPE.fullmatch(dtype)
    kind, bits = match.groups() if match else ("float", "32")
    return _CODES.get(kind, 2), int(bits or 8)
