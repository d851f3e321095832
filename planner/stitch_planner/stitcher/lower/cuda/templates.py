"""The lowering templates of CUDA programs, in the order in which they are asked."""

from stitch_planner.stitcher.lower.cuda.attention import CudaAttention
from stitch_planner.stitcher.lower.cuda.chunks import split_over_blocks
from stitch_planner.stitcher.lower.cuda.convolutions import CudaConv
from stitch_planner.stitcher.lower.cuda.endings import CudaElements
from stitch_planner.stitcher.lower.cuda.image_plan import ImagePlans
from stitch_planner.stitcher.lower.cuda.joins import CudaConcat
from stitch_planner.stitcher.lower.cuda.lookups import CudaEinsum, CudaRowIndex
from stitch_planner.stitcher.lower.cuda.losses import CudaCrossEntropy
from stitch_planner.stitcher.lower.cuda.norms import CudaBatchNorm, CudaImageNorm, CudaLongRowNorm
from stitch_planner.stitcher.lower.cuda.pools import CudaPool
from stitch_planner.stitcher.lower.cuda.products import CudaProduct
from stitch_planner.stitcher.lower.cuda.recurrent import CudaRnn
from stitch_planner.stitcher.lower.cuda.scans import CudaFlip, CudaScan
from stitch_planner.stitcher.lower.cuda.unrolled import CudaUnrolled
from stitch_planner.stitcher.lower.cuda.vectors import MatrixVector
from stitch_planner.stitcher.lower.cuda.volumes import CudaVolumeConv
from stitch_planner.stitcher.lower.templates.base import Template
from stitch_planner.stitcher.lower.templates.embedding import Embedding, EmbeddingBag
from stitch_planner.stitcher.lower.templates.loss import ClassLoss
from stitch_planner.stitcher.lower.templates.pool import Upsample
from stitch_planner.stitcher.lower.templates.rearrange import Pad, PixelShuffle, Roll, Triangle
from stitch_planner.stitcher.lower.templates.scan import Extreme
from stitch_planner.stitcher.lower.templates.windows import Windows
from stitch_tools.models.task import Contract


def cuda_templates(contract: Contract) -> tuple[Template, ...]:
    """Templates whose kernels have a CUDA form; reduced precision only where the contract allows it."""
    allow_tf32 = contract.matmul_precision != "fp32"
    conv_tf32 = contract.conv_precision != "fp32"
    plans = ImagePlans()
    return (
        Windows(),
        CudaVolumeConv(allow_tf32=conv_tf32),
        CudaConv(plans, allow_tf32=conv_tf32),
        CudaAttention(allow_tf32=allow_tf32),  # before products: it takes the one that begins an attention
        MatrixVector(),
        CudaProduct(allow_tf32=allow_tf32),
        CudaCrossEntropy(),
        CudaRnn(),
        CudaUnrolled(allow_tf32=allow_tf32),
        ClassLoss(),
        CudaBatchNorm(),
        CudaImageNorm(),
        CudaLongRowNorm(),
        CudaPool(plans),
        Upsample(),
        CudaConcat(plans),
        PixelShuffle(),
        Pad(),
        CudaFlip(),
        Roll(),
        Triangle(),
        CudaScan(),
        Extreme(),
        Embedding(),
        EmbeddingBag(),
        CudaRowIndex(),
        CudaEinsum(allow_tf32=allow_tf32),
        CudaElements(split_over_blocks, crosses=True),
    )
