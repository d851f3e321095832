"""What a worker asks for when its program builds an extension of PyTorch, and how that is built elsewhere."""

from stitch_tools.protocol.messages import Message, Operation


class ExtensionSource(Message):
    """An extension as `torch.utils.cpp_extension` is about to build it."""

    files: tuple[tuple[str, str], ...]
    """Name and text of each source."""
    arguments: dict[str, object]
    """The other arguments of torch's build, as it was called: name, flags, with_cuda, ..."""
    archs: str
    """TORCH_CUDA_ARCH_LIST of the build; "" where the extension holds no CUDA code."""


class ExtensionBuilt(Message):
    """A built extension, or what the compiler said. Both are empty where the worker is to build it itself."""

    library: bytes = b""
    error: str = ""


class FindExtension(Operation[ExtensionBuilt], op="find_extension"):
    """A worker asks its controller for an extension."""

    source: ExtensionSource


class BuildExtension(Operation[ExtensionBuilt], op="build_extension"):
    """A controller has a child that holds no program build an extension."""

    source: ExtensionSource
    lean_include: str
    """Folder of headers that stand before torch's own; "" for a stock build."""
