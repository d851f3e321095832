"""The ordered list of lowering templates. Adding a family is one file and one line here."""

from stitch_planner.stitcher.templates.attention import Attention
from stitch_planner.stitcher.templates.base import NOT_MINE, LibraryTemplate, Template
from stitch_planner.stitcher.templates.batch_norm import BatchNorm
from stitch_planner.stitcher.templates.concat import Concat
from stitch_planner.stitcher.templates.conv import Conv
from stitch_planner.stitcher.templates.elements import Elements
from stitch_planner.stitcher.templates.embedding import Embedding, EmbeddingBag
from stitch_planner.stitcher.templates.gemm import Gemm
from stitch_planner.stitcher.templates.group_norm import GroupNorm
from stitch_planner.stitcher.templates.loss import ClassLoss
from stitch_planner.stitcher.templates.pool import Pool, Upsample
from stitch_planner.stitcher.templates.rearrange import Pad, PixelShuffle
from stitch_planner.stitcher.templates.rnn import Rnn
from stitch_planner.stitcher.templates.windows import Windows

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
    Gemm(),
    Elements(),
)

__all__ = ["NOT_MINE", "TEMPLATES", "LibraryTemplate", "Template"]
