"""Which normalisations of images are computed together with the element-wise operations around them.

The library's calls read an image twice and write it once. Where an expression comes before the norm, or one
that the call cannot take behind it, or the result has to leave in another order of memory, a kernel for each
would read and write the image again: reductions and one element-wise kernel with all of that cost less.
"""

from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, value_key
from stitch_planner.stitcher.lower.scalars import EXPRESSIONS
from stitch_planner.stitcher.lower.templates.batch_norm import absorbs_tail
from stitch_tools.models.graph import GraphNode

FEWEST_ELEMENTS = 1 << 22
"""Below these, an image stays in the cache between kernels, and their number counts."""
_CONVOLUTIONS = ("aten.conv1d", "aten.conv2d", "aten.conv_transpose1d", "aten.conv_transpose2d")


def joins_elements(node: GraphNode, index: GraphIndex) -> bool:
    """Whether a norm of an image that a convolution made is better computed so."""
    source = value_key(node.args[0])
    if node.outputs[0].numel < FEWEST_ELEMENTS or not _is_convolved(source, index):
        return False
    before = index.producer(source)
    if before is not None and before.op in EXPRESSIONS and index.sole_user(before) is not None:
        return True
    nodes = [node]
    while (user := index.sole_user(nodes[-1])) is not None and absorbs_tail(nodes, user, index):
        nodes.append(user)
    key = (nodes[-1].name, 0)
    users = index.users(key)
    return index.leaves(key) or (bool(users) and all(_is_element(user, index) for user in users))


def _is_element(node: GraphNode, index: GraphIndex) -> bool:
    return node.op in EXPRESSIONS and node.outputs[0].numel == index.spec(value_key(node.args[0])).numel


def _is_convolved(key: ValueKey, index: GraphIndex) -> bool:
    """Whether a value is what element-wise operations made of a channels-last convolution's result."""
    shape = index.shape(key)
    while (node := index.producer(key)) is not None:
        if node.op.startswith(_CONVOLUTIONS):
            return True
        operands = [other for other in index.operands(node) if index.shape(other) == shape]
        if node.op not in EXPRESSIONS or not operands:
            return False
        key = operands[0]
    return False
