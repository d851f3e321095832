"""The ordered list of lowering templates. Adding a family is one file and one line here."""

from stitch_planner.stitcher.lower.templates.attention import Attention
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate, Template
from stitch_planner.stitcher.lower.templates.batch_norm import BatchNorm
from stitch_planner.stitcher.lower.templates.concat import Concat
from stitch_planner.stitcher.lower.templates.conv import Conv
from stitch_planner.stitcher.lower.templates.einsum import Einsum
from stitch_planner.stitcher.lower.templates.elements import Elements
from stitch_planner.stitcher.lower.templates.embedding import Embedding, EmbeddingBag
from stitch_planner.stitcher.lower.templates.gemm import Gemm
from stitch_planner.stitcher.lower.templates.group_norm import GroupNorm
from stitch_planner.stitcher.lower.templates.loss import ClassLoss
from stitch_planner.stitcher.lower.templates.pool import Pool, Upsample
from stitch_planner.stitcher.lower.templates.rearrange import Flip, Pad, PixelShuffle, Roll, Triangle
from stitch_planner.stitcher.lower.templates.rnn import Rnn
from stitch_planner.stitcher.lower.templates.scan import Extreme, Scan
from stitch_planner.stitcher.lower.templates.windows import Windows

TEMPLATES: tuple[Template, ...] = (
    Windows(),
    Attention(),  # before Gemm: it takes the product of queries and keys that begins an attention
    Conv(),
    BatchNorm(),
    GroupNorm(),
    Pool(),
    Upsample(),
    Rnn(),
    Embedding(),
    EmbeddingBag(),
    ClassLoss(),
    Concat(),
    PixelShuffle(),
    Pad(),
    Flip(),
    Roll(),
    Triangle(),
    Scan(),
    Extreme(),
    Einsum(),
    Gemm(),
    Elements(),
)

__all__ = ["NOT_MINE", "TEMPLATES", "LibraryTemplate", "Template"]
