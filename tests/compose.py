"""Composes random references from the layers of the examples, as KernelBench-style source text.

    python -m tests.compose FOLDER --count 20 --seed 7

The same seed gives the same text. Three families: rows (batch, features), sequences (batch, time, features)
and images (batch, channels, height, width); 3 to 8 layers whose shapes fit, then a head.
"""

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ACTIVATIONS = (
    "torch.relu({})",
    "functional.gelu({})",
    'functional.gelu({}, approximate="tanh")',
    "functional.silu({})",
    "torch.tanh({})",
    "torch.sigmoid({})",
    "functional.leaky_relu({}, 0.1)",
    "functional.elu({})",
    "functional.softplus({})",
    "functional.hardswish({})",
    "functional.relu6({})",
)

HELPERS = {
    "RMSNorm": """
class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6) * self.weight
""",
    "Attention": """
class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        parts = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(-2))
""",
    "WrittenAttention": """
class WrittenAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q = self.query(x).view(shape).transpose(1, 2)
        k = self.key(x).view(shape).transpose(1, 2)
        v = self.value(x).view(shape).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(batch, length, width)
""",
    "Separable": """
class Separable(nn.Module):
    def __init__(self, channels_in, channels_out, stride):
        super().__init__()
        self.depthwise = nn.Conv2d(channels_in, channels_in, 3, stride, 1, groups=channels_in, bias=False)
        self.norm = nn.BatchNorm2d(channels_in)
        self.pointwise = nn.Conv2d(channels_in, channels_out, 1)

    def forward(self, x):
        return self.pointwise(functional.relu6(self.norm(self.depthwise(x))))
""",
}


@dataclass
class Draft:
    """A reference while it grows: the shape that `x` has now, and the lines so far."""

    rng: random.Random
    shape: tuple[int, ...]
    init: list[str] = field(default_factory=list[str])
    forward: list[str] = field(default_factory=list[str])
    helpers: set[str] = field(default_factory=set[str])
    layers: list[str] = field(default_factory=list[str])
    inputs: list[str] = field(default_factory=list[str])
    arguments: list[str] = field(default_factory=lambda: ["x"])
    evaluates: bool = False
    """Whether the contract puts the module into eval mode (dropout is used only then)."""

    def add(self, module: str) -> str:
        """Declare a submodule and return the expression that names it."""
        name = f"layer{len(self.init)}"
        self.init.append(f"self.{name} = {module}")
        return f"self.{name}"

    def apply(self, module: str) -> None:
        """Declare a submodule and call it on x."""
        self.set(f"{self.add(module)}(x)")

    def set(self, expression: str) -> None:
        """Assign to x."""
        self.forward.append(f"x = {expression}")

    def activate(self, expression: str) -> str:
        """`expression` behind a random activation."""
        return self.rng.choice(ACTIVATIONS).format(expression)

    def pick(self, *values: int) -> int:
        """One of the values."""
        return self.rng.choice(values)


Layer = Callable[[Draft], None]


def linear(draft: Draft) -> None:
    width = draft.pick(32, 48, 64, 96, 128)
    bias = "" if draft.rng.random() < 0.7 else ", bias=False"
    layer = draft.add(f"nn.Linear({draft.shape[-1]}, {width}{bias})")
    draft.set(draft.activate(f"{layer}(x)"))
    draft.shape = (*draft.shape[:-1], width)


def layer_norm(draft: Draft) -> None:
    draft.apply(f"nn.LayerNorm({draft.shape[-1]})")


def rms_norm(draft: Draft) -> None:
    draft.helpers.add("RMSNorm")
    draft.apply(f"RMSNorm({draft.shape[-1]})")


def feed_forward(draft: Draft) -> None:
    width = draft.shape[-1]
    up, down = draft.add(f"nn.Linear({width}, {2 * width})"), draft.add(f"nn.Linear({2 * width}, {width})")
    draft.set(f"x + {down}({draft.activate(f'{up}(x)')})")


def gated(draft: Draft) -> None:
    width, hidden = draft.shape[-1], draft.pick(48, 96, 160)
    gate = draft.add(f"nn.Linear({width}, {hidden}, bias=False)")
    up, down = (
        draft.add(f"nn.Linear({width}, {hidden}, bias=False)"),
        draft.add(f"nn.Linear({hidden}, {width})"),
    )
    draft.set(f"{down}(functional.silu({gate}(x)) * {up}(x))")


def scale_and_shift(draft: Draft) -> None:
    width = draft.shape[-1]
    scale = draft.add(f"nn.Parameter(torch.rand({width}) + 0.5)")
    shift = draft.add("nn.Parameter(torch.tensor(0.25))")
    draft.set(f"(x * {scale} + {shift}).clamp(-3.0, 3.0)")


def unit_length(draft: Draft) -> None:
    draft.set("functional.normalize(x, dim=-1)")


def softmax(draft: Draft) -> None:
    draft.set("torch.softmax(x / 0.7, dim=-1)")


def dropout(draft: Draft) -> None:
    draft.evaluates = True
    draft.apply("nn.Dropout(0.2)")


def batch_norm_rows(draft: Draft) -> None:
    draft.apply(f"nn.BatchNorm1d({draft.shape[-1]})")


def heads_for(width: int, draft: Draft) -> int:
    return draft.rng.choice([heads for heads in (1, 2, 4, 8) if width % heads == 0])


def attention(draft: Draft) -> None:
    draft.helpers.add("Attention")
    width = draft.shape[-1]
    causal = draft.rng.random() < 0.5
    norm = draft.add(f"nn.LayerNorm({width})")
    mix = draft.add(f"Attention({width}, {heads_for(width, draft)}, {causal})")
    draft.set(f"x + {mix}({norm}(x))")


def written_attention(draft: Draft) -> None:
    draft.helpers.add("WrittenAttention")
    width = draft.shape[-1]
    draft.apply(f"WrittenAttention({width}, {heads_for(width, draft)})")


def recurrent(draft: Draft) -> None:
    kind, hidden = draft.rng.choice(("LSTM", "GRU")), draft.pick(32, 48, 64)
    both = draft.rng.random() < 0.3
    layers = draft.pick(1, 1, 2)
    extra = ", bidirectional=True" if both else ""
    layer = draft.add(f"nn.{kind}({draft.shape[-1]}, {hidden}, num_layers={layers}, batch_first=True{extra})")
    draft.set(f"{layer}(x)[0]")
    draft.shape = (*draft.shape[:-1], 2 * hidden if both else hidden)


def positions(draft: Draft) -> None:
    table = draft.add(f"nn.Parameter(torch.randn({draft.shape[1]}, {draft.shape[2]}) * 0.1)")
    draft.set(f"x + {table}")


def conv_norm(draft: Draft) -> None:
    channels, stride = draft.pick(8, 16, 24, 32), draft.pick(1, 1, 2)
    conv = draft.add(f"nn.Conv2d({draft.shape[1]}, {channels}, 3, {stride}, 1, bias=False)")
    norm = draft.add(f"nn.BatchNorm2d({channels})")
    draft.set(draft.activate(f"{norm}({conv}(x))"))
    resize(draft, channels, stride)


def plain_conv(draft: Draft) -> None:
    size = draft.pick(1, 3, 5)
    channels = draft.pick(8, 16, 32)
    conv = draft.add(f"nn.Conv2d({draft.shape[1]}, {channels}, {size}, padding={size // 2})")
    draft.set(draft.activate(f"{conv}(x)"))
    resize(draft, channels, 1)


def separable(draft: Draft) -> None:
    draft.helpers.add("Separable")
    channels, stride = draft.pick(16, 24, 32), draft.pick(1, 1, 2)
    draft.apply(f"Separable({draft.shape[1]}, {channels}, {stride})")
    resize(draft, channels, stride)


def residual_conv(draft: Draft) -> None:
    channels = draft.shape[1]
    conv = draft.add(f"nn.Conv2d({channels}, {channels}, 3, padding=1)")
    draft.set(f"x + {draft.activate(f'{conv}(x)')}")


def pool(draft: Draft) -> None:
    if min(draft.shape[2:]) < 8:
        residual_conv(draft)
        return
    draft.apply(draft.rng.choice(("nn.MaxPool2d(2)", "nn.AvgPool2d(2)", "nn.MaxPool2d(3, 2, 1)")))
    resize(draft, draft.shape[1], 2)


def upsample(draft: Draft) -> None:
    if max(draft.shape[2:]) > 48:
        pool(draft)
        return
    channels = draft.pick(8, 16, 24)
    conv = draft.add(f"nn.Conv2d({draft.shape[1]}, {channels}, 3, padding=1)")
    norm = draft.add(f"nn.GroupNorm({draft.pick(2, 4, 8)}, {channels})")
    grown = 'functional.interpolate(x, scale_factor=2.0, mode="nearest")'
    draft.set(f"functional.silu({norm}({conv}({grown})))")
    draft.shape = (draft.shape[0], channels, 2 * draft.shape[2], 2 * draft.shape[3])


def u_net(draft: Draft) -> None:
    batch, channels, height, width = draft.shape
    if height % 2 or width % 2:
        residual_conv(draft)
        return
    deep = draft.add(f"nn.Conv2d({channels}, {2 * channels}, 3, padding=1)")
    up = draft.add(f"nn.ConvTranspose2d({2 * channels}, {channels}, 2, stride=2)")
    join = draft.add(f"nn.Conv2d({2 * channels}, {channels}, 3, padding=1)")
    draft.set(f"{join}(torch.cat([x, {up}(torch.relu({deep}(functional.max_pool2d(x, 2))))], dim=1))")
    draft.shape = (batch, channels, height, width)


def group_norm(draft: Draft) -> None:
    groups = draft.rng.choice([count for count in (1, 2, 4, 8) if draft.shape[1] % count == 0])
    draft.apply(f"nn.GroupNorm({groups}, {draft.shape[1]})")


def resize(draft: Draft, channels: int, stride: int) -> None:
    height, width = (-(-size // stride) for size in draft.shape[2:])
    draft.shape = (draft.shape[0], channels, height, width)


def head_of_rows(draft: Draft) -> str:
    classes = draft.add(f"nn.Linear({draft.shape[-1]}, 10)")
    return draft.rng.choice(
        (f"{classes}(x)", f"torch.log_softmax({classes}(x), dim=-1)", f"({classes}(x), x.amax(dim=-1))", "x")
    )


def head_of_sequences(draft: Draft) -> str:
    classes = draft.add(f"nn.Linear({draft.shape[-1]}, 12)")
    if draft.rng.random() < 0.25:
        draft.arguments.append("targets")
        draft.inputs.append(f"torch.randint(0, 12, ({draft.shape[0]}, {draft.shape[1]}))")
        return f"functional.cross_entropy({classes}(x).flatten(0, 1), targets.flatten())"
    return draft.rng.choice(
        (f"{classes}(x.mean(dim=1))", f"{classes}(x[:, -1])", f"torch.log_softmax({classes}(x), dim=-1)", "x")
    )


def head_of_images(draft: Draft) -> str:
    channels = draft.shape[1]
    choice = draft.pick(0, 1, 2, 3)
    if choice == 0:
        classes = draft.add(f"nn.Linear({channels}, 10)")
        return f"{classes}(functional.adaptive_avg_pool2d(x, 1).flatten(1))"
    if choice == 1:
        classes = draft.add(f"nn.Linear({channels}, 10)")
        return f"{classes}(x.mean(dim=(2, 3)))"
    pixels = draft.add(f"nn.Conv2d({channels}, 3, 1)")
    return f"torch.sigmoid({pixels}(x))" if choice == 2 else f"torch.softmax({pixels}(x), dim=1)"


def start_rows(draft: Draft) -> None:
    draft.shape = (draft.pick(64, 200, 512), draft.pick(24, 32, 50, 64))
    draft.inputs.append(f"torch.randn{draft.shape}")


def start_sequences(draft: Draft) -> None:
    batch, length, width = draft.pick(2, 4, 8), draft.pick(16, 33, 64), draft.pick(32, 48, 64)
    draft.shape = (batch, length, width)
    if draft.rng.random() < 0.3:
        table = draft.add(f"nn.Embedding(500, {width})")
        draft.forward.append(f"x = {table}(x)")
        draft.inputs.append(f"torch.randint(0, 500, ({batch}, {length}))")
    else:
        draft.inputs.append(f"torch.randn{draft.shape}")


def start_images(draft: Draft) -> None:
    batch, channels, size = draft.pick(1, 2, 4), draft.pick(3, 8, 16), draft.pick(16, 28, 32)
    draft.shape = (batch, channels, size, size)
    if draft.rng.random() < 0.25:
        layer = draft.add(f"nn.Linear(20, {channels * size * size})")
        draft.forward.append(f"x = {layer}(x).view(-1, {channels}, {size}, {size})")
        draft.inputs.append(f"torch.randn({batch}, 20)")
    else:
        draft.inputs.append(f"torch.randn{draft.shape}")


ROW_LAYERS: tuple[Layer, ...] = (
    linear,
    layer_norm,
    rms_norm,
    feed_forward,
    gated,
    scale_and_shift,
    unit_length,
    softmax,
    dropout,
    batch_norm_rows,
)
SEQUENCE_LAYERS: tuple[Layer, ...] = (
    linear,
    layer_norm,
    rms_norm,
    feed_forward,
    gated,
    attention,
    written_attention,
    recurrent,
    positions,
    dropout,
)
IMAGE_LAYERS: tuple[Layer, ...] = (
    conv_norm,
    plain_conv,
    separable,
    residual_conv,
    pool,
    upsample,
    u_net,
    group_norm,
)
FAMILIES: dict[str, tuple[Layer, tuple[Layer, ...], Callable[[Draft], str]]] = {
    "rows": (start_rows, ROW_LAYERS, head_of_rows),
    "sequences": (start_sequences, SEQUENCE_LAYERS, head_of_sequences),
    "images": (start_images, IMAGE_LAYERS, head_of_images),
}


@dataclass(frozen=True)
class Composed:
    """One random reference."""

    name: str
    source: str
    task_toml: str
    layers: tuple[str, ...]

    def write(self, folder: Path) -> Path:
        """Write source and contract below `folder`; returns the source's path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.py"
        path.write_text(self.source, encoding="utf-8")
        path.with_suffix(".task.toml").write_text(self.task_toml, encoding="utf-8")
        return path


def compose(seed: int) -> Composed:
    """The random reference of that seed; the family goes round with it."""
    rng = random.Random(seed)
    family = list(FAMILIES)[seed % len(FAMILIES)]
    start, layers, head = FAMILIES[family]
    draft = Draft(rng, ())
    start(draft)
    chosen = [rng.choice(layers) for _ in range(rng.randint(3, 8))]
    for layer in chosen:
        layer(draft)
        draft.layers.append(layer.__name__)
    return finished(draft, head(draft), f"{family}_{seed}")


def finished(draft: Draft, result: str, name: str) -> Composed:
    """The reference whose forward returns the expression `result`."""
    mode = "eval" if draft.evaluates or draft.rng.random() < 0.5 else "train"
    toml = f'# {", ".join(draft.layers)}\nreference = "{name}.py"\n\n[contract]\nmode = "{mode}"\n'
    return Composed(name, _source(draft, result), toml, tuple(draft.layers))


def _source(draft: Draft, result: str) -> str:
    body = ["super().__init__()", *draft.init]
    forward = [*draft.forward, f"return {result}"]
    helpers = "\n".join(text for name, text in HELPERS.items() if name in draft.helpers)
    arguments = ", ".join(draft.arguments)
    lines = [
        f'"""{", ".join(draft.layers)}."""\n',
        "import math\n" if "WrittenAttention" in draft.helpers else "",
        "import torch\nfrom torch import nn\nfrom torch.nn import functional\n",
        helpers,
        "\nclass Model(nn.Module):",
        "    def __init__(self):",
        *(f"        {line}" for line in body),
        f"\n    def forward(self, {arguments}):",
        *(f"        {line}" for line in forward),
        "\n\ndef get_inputs():",
        f"    return [{', '.join(draft.inputs)}]",
    ]
    return "\n".join(line for line in lines if line) + "\n"


def main(draw: Callable[[int], Composed] = compose) -> None:
    """Write references that `draw` makes of seeds to a folder and print their paths."""
    parser = argparse.ArgumentParser(description="compose random references")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + options.count):
        print(draw(seed).write(options.folder))


if __name__ == "__main__":
    main()
