"""The native ABI's structs as ctypes; native/include/stitch/abi.h is the definition."""

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

import torch

ABI_VERSION = 1
MAX_DIMS = 16
MAX_OUTPUTS = 256

OK, ERROR, UNSUPPORTED, OUT_OF_MEMORY, MISSING_LIBRARY = range(5)
STATUS_NAMES = {OK: "ok", ERROR: "error", UNSUPPORTED: "unsupported", OUT_OF_MEMORY: "out_of_memory",
                MISSING_LIBRARY: "missing_library"}  # fmt: skip
CAPTURABLE, INPLACE_STATE = 1, 2

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL, _E4M3FN, _E5M2 = 0, 1, 2, 4, 5, 6, 10, 12
DTYPE_CODES: dict[torch.dtype, tuple[int, int]] = {
    torch.float64: (_FLOAT, 64),
    torch.float32: (_FLOAT, 32),
    torch.float16: (_FLOAT, 16),
    torch.bfloat16: (_BFLOAT, 16),
    torch.float8_e4m3fn: (_E4M3FN, 8),
    torch.float8_e5m2: (_E5M2, 8),
    torch.int64: (_INT, 64),
    torch.int32: (_INT, 32),
    torch.int16: (_INT, 16),
    torch.int8: (_INT, 8),
    torch.uint8: (_UINT, 8),
    torch.bool: (_BOOL, 8),
    torch.complex64: (_COMPLEX, 64),
    torch.complex128: (_COMPLEX, 128),
}
DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}


class AbiDevice(ctypes.Structure):
    """DLDevice."""

    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class DataType(ctypes.Structure):
    """DLDataType."""

    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DLTensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", c_void_p),
        ("device", AbiDevice),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class NamedTensor(ctypes.Structure):
    """StitchNamedTensor."""

    _fields_ = [("struct_size", c_uint64), ("name", c_char_p), ("tensor", DLTensor)]


class InitArgs(ctypes.Structure):
    """StitchInitArgs."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("num_params", c_int64),
        ("params", POINTER(NamedTensor)),
        ("device", AbiDevice),
        ("stream", c_void_p),
        ("num_threads", c_int32),
    ]


class AbiTensorSpec(ctypes.Structure):
    """StitchTensorSpec."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", c_int64 * MAX_DIMS),
    ]


class AbiPlan(ctypes.Structure):
    """StitchPlan."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("capacity", c_int32),
        ("num_outputs", c_int32),
        ("outputs", POINTER(AbiTensorSpec)),
        ("workspace_bytes", c_uint64),
        ("flags", c_uint32),
    ]


class ForwardArgs(ctypes.Structure):
    """StitchForwardArgs."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("inputs", POINTER(DLTensor)),
        ("state", POINTER(DLTensor)),
        ("outputs", POINTER(DLTensor)),
        ("num_inputs", c_int32),
        ("num_state", c_int32),
        ("num_outputs", c_int32),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("stream", c_void_p),
    ]


def device_of(device: torch.device) -> AbiDevice:
    """The DLDevice of a torch device."""
    return AbiDevice(2, device.index or 0) if device.type == "cuda" else AbiDevice(1, 0)


def fill_tensor(target: DLTensor, tensor: torch.Tensor) -> list[object]:
    """Describe `tensor` in `target`; returns what must stay alive as long as `target` is used."""
    code, bits = DTYPE_CODES[tensor.dtype]
    dims = c_int64 * max(1, tensor.dim())
    shape, strides = dims(*tensor.shape), dims(*tensor.stride())
    target.data = tensor.untyped_storage().data_ptr()
    target.device = device_of(tensor.device)
    target.ndim = tensor.dim()
    target.dtype = DataType(code, bits, 1)
    target.shape = ctypes.cast(shape, POINTER(c_int64))
    target.strides = None if tensor.is_contiguous() else ctypes.cast(strides, POINTER(c_int64))
    target.byte_offset = tensor.storage_offset() * tensor.element_size()
    return [tensor, shape, strides]


def bind(library: ctypes.CDLL) -> None:
    """Declare the six functions' types.

    Raises:
        AttributeError: a function is missing.
    """
    handle = c_void_p
    signatures = {
        "stitch_abi_version": (c_int32, []),
        "stitch_init": (c_int32, [POINTER(InitArgs), POINTER(handle)]),
        "stitch_plan": (c_int32, [handle, POINTER(DLTensor), c_int32, POINTER(AbiPlan)]),
        "stitch_forward": (c_int32, [handle, POINTER(ForwardArgs)]),
        "stitch_last_error": (c_char_p, [handle]),
        "stitch_free": (None, [handle]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
