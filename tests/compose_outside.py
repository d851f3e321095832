"""Composes random references of what people write and no template knows, between layers that have one.

    python -m tests.compose_outside FOLDER --count 20 --seed 7

The same seed gives the same text. `raw` is a copy of the input: what jumps (a floor, an index) is
made of it alone and of powers of two, where every right program has the very same values.
"""

import random

from tests.compose import (
    Composed,
    Draft,
    Layer,
    feed_forward,
    finished,
    layer_norm,
    linear,
    main,
    rms_norm,
    scale_and_shift,
    softmax,
    unit_length,
)


def weight_norm(draft: Draft) -> None:
    width = draft.pick(32, 48, 64)
    draft.apply(f"nn.utils.parametrizations.weight_norm(nn.Linear({draft.shape[-1]}, {width}))")
    draft.shape = (*draft.shape[:-1], width)


def spectral_norm(draft: Draft) -> None:
    draft.evaluates = True  # in training it moves its own buffers
    width = draft.pick(32, 48)
    draft.apply(f"nn.utils.parametrizations.spectral_norm(nn.Linear({draft.shape[-1]}, {width}))")
    draft.shape = (*draft.shape[:-1], width)


def tied(draft: Draft) -> None:
    width = draft.shape[-1]
    first, second = draft.add(f"nn.Linear({width}, {width})"), draft.add(f"nn.Linear({width}, {width})")
    draft.init.append(f"{second}.weight = {first}.weight")
    draft.set(f"{second}(torch.tanh({first}(x)))")


def computed_bias(draft: Draft) -> None:
    width = draft.shape[-1]
    weight, bias = (
        draft.add(f"nn.Parameter(torch.randn({size}) * 0.1)") for size in (f"{width}, {width}", width)
    )
    draft.set(f"functional.linear(x, {weight}, {bias} * 2 + 1)")


def in_place(draft: Draft) -> None:
    draft.forward.append(draft.rng.choice(("functional.relu(x, inplace=True)", "x.mul_(0.5)", "x += 1")))


def counter(draft: Draft) -> None:
    name = f"calls{len(draft.init)}"
    draft.init.append(f'self.register_buffer("{name}", torch.zeros(()))')
    draft.forward.append(f"self.{name} += 1")


def complex_values(draft: Draft) -> None:
    width = draft.shape[-1]
    draft.set(draft.rng.choice(("torch.fft.rfft(x).abs()", "torch.view_as_real(torch.fft.rfft(x))[..., 0]")))
    draft.shape = (*draft.shape[:-1], width // 2 + 1)


def rotated(draft: Draft) -> None:
    if draft.shape[-1] % 2:
        complex_values(draft)
        return
    pairs = draft.shape[-1] // 2
    turn = f"torch.polar(torch.ones({pairs}), torch.arange({pairs}) / {pairs})"
    draft.set(f"torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * {turn}).flatten(-2)")


def whole_numbers(draft: Draft) -> None:
    """Integers, bytes, shorts and halves of the input, each through functions that take them."""
    value = draft.rng.choice(
        (
            "torch.floor((raw * 4).long()) + torch.round(raw.int())",
            "(raw * 8).short().abs()",
            "(raw.abs() * 4).to(torch.uint8) // 2",
            "torch.where(raw > 0, 1, 0) * 3 + (raw > 1)",
            "(raw * 16).to(torch.int8).clamp(-5, 7)",
            "torch.bitwise_xor(raw.long(), 5) % 3",
            "torch.ceil(raw).long() << 1",
            "raw.bfloat16()",
            "torch.bucketize(raw, torch.tensor([-1.0, 0.0, 0.5]))",
            "(raw > 0).logical_xor(raw < 1)",
            "torch.sign(raw.int()) * raw.int().square()",
        )
    )
    draft.set(f"x + ({value}).float().mean(dim=-1, keepdim=True)")


def picked(draft: Draft) -> None:
    batch, width = draft.shape
    order = random.Random(width).sample(range(width), width)
    draft.set(
        draft.rng.choice(
            (
                f"x[:, {order[: width // 2]}].repeat(1, 2)[:, :{width // 2 * 2}]",
                f"x[torch.arange({batch}).flip(0), None].squeeze(1)[:, :{width // 2 * 2}]",
                f"x.gather(1, torch.tensor([{order}]).expand({batch}, -1))[:, :{width // 2 * 2}]",
                f"x.index_select(1, raw.argmax(0)[:1].long() % {width}) + x[:, :{width // 2 * 2}]",
                f"x.take_along_dim(raw.argsort(dim=-1)[:, :1] % {width}, 1) * x[..., :{width // 2 * 2}]",
            )
        )
    )
    draft.shape = (batch, width // 2 * 2)


def written(draft: Draft) -> None:
    """Parts of a copy that are overwritten."""
    lines = draft.rng.choice(
        (
            ("x = x.clone()", "x[:, 1:3] = 0.5"),
            ("x = x.clone()", "x[:, :2] *= 0.5"),
            ("x = torch.zeros_like(x).scatter(1, torch.arange(x.shape[1]).flip(0).expand_as(x), x)",),
            ("x = x.index_fill(1, torch.tensor([0, 2]), 0.25)",),
            ("x = x.index_add(0, torch.tensor([0, 0]), x[:2], alpha=2)",),
        )
    )
    draft.forward.extend(lines)


def ordered(draft: Draft) -> None:
    draft.set(
        draft.rng.choice(
            (
                "x.sort(dim=-1, descending=True).values",
                "x.topk(8).values.mean(-1, keepdim=True) - x",
                "x - x.median(dim=-1, keepdim=True).values",
                "x.cummax(dim=1).values",
                "x.gather(1, x.argsort(dim=-1))",
            )
        )
    )


def running(draft: Draft) -> None:
    draft.set(
        draft.rng.choice(
            ("x.cumsum(dim=1) * 0.1", "torch.logcumsumexp(x, dim=1)", "torch.diff(x, prepend=x[:, :1])")
        )
    )


def masked(draft: Draft) -> None:
    hidden = draft.rng.choice(
        ("raw[:, :1] > 0", "torch.arange(x.shape[1]) > 5", "torch.ones_like(x).triu(1).bool()")
    )
    kept = f'x.masked_fill({hidden}, float("-inf"))'
    draft.set(
        draft.rng.choice(
            (
                f"x + torch.logsumexp({kept}, dim=-1, keepdim=True).clamp(min=-3)",
                f"torch.softmax({kept}, dim=-1).nan_to_num(0.5)",
                f"x + torch.log_softmax({kept}, dim=-1).nan_to_num(0.0, neginf=-2.0)",
            )
        )
    )


def contracted(draft: Draft) -> None:
    width, wider = draft.shape[-1], draft.pick(24, 40)
    table = draft.add(f"nn.Parameter(torch.randn({width}, {wider}) * 0.2)")
    formula = draft.rng.choice(("bi,ij->bj", "...i,ij->...j", "b i, i j -> b j"))
    draft.set(f'torch.einsum("{formula}", x, {table})')
    draft.shape = (*draft.shape[:-1], wider)


def arranged(draft: Draft) -> None:
    draft.set(
        draft.rng.choice(
            (
                "torch.roll(x, 3, dims=-1).flip(0)",
                "functional.pad(x[None], (1, 2), mode='replicate')[0][:, 1:-2]",
                "torch.stack([x, -x]).amax(0)",
                "x.tril(2) + x.triu(-1)",
                "torch.stack(x.unbind(0), dim=0).contiguous()",
                "torch.block_diag(x, x)[: x.shape[0], : x.shape[1]]",
            )
        )
    )


def powers(draft: Draft) -> None:
    draft.set(
        draft.rng.choice(
            (
                "torch.exp2(-x.abs())",
                "2.0 ** x.clamp(-3, 3)",
                "torch.log2(x.abs() + 1)",
                "torch.xlogy(x, x.abs() + 1)",
            )
        )
    )


OUTSIDE: tuple[Layer, ...] = (
    weight_norm,
    spectral_norm,
    tied,
    computed_bias,
    in_place,
    counter,
    complex_values,
    rotated,
    whole_numbers,
    picked,
    written,
    ordered,
    running,
    masked,
    contracted,
    arranged,
    powers,
)
KNOWN: tuple[Layer, ...] = (linear, layer_norm, rms_norm, feed_forward, scale_and_shift, unit_length, softmax)
NUMBERS = ("x.shape[0]", "0.5", "x.dim() > 1", "None", "-7", "x.numel() / 3")


def compose_outside(seed: int) -> Composed:
    """The random reference of that seed: some pieces that no template knows, and some that one does."""
    rng = random.Random(seed)
    draft = Draft(rng, (rng.choice((16, 24, 40)), rng.choice((24, 33, 48))))
    draft.inputs.append(f"torch.randn{draft.shape}")
    draft.forward.append("raw = x.clone()")
    chosen = [*rng.sample(OUTSIDE, rng.randint(2, 3)), *rng.sample(KNOWN, rng.randint(1, 2))]
    rng.shuffle(chosen)
    for piece in chosen:
        piece(draft)
        draft.layers.append(piece.__name__)
    return finished(draft, result(draft), f"outside_{seed}")


def result(draft: Draft) -> str:
    """What forward returns: x alone or in a tree with numbers, a weight, the input, integers."""
    kind = draft.rng.choice(("alone", "alone", "tuple", "dict"))
    if kind == "alone":
        return "x"
    weight = draft.add("nn.Parameter(torch.randn(3, 5))")
    more = draft.rng.sample((*NUMBERS, weight, f"{weight}.t() * 2", "raw", "raw > 0", "x.mean(0)"), 3)
    if kind == "tuple":
        return f"x, {', '.join(more)}"
    pairs = ", ".join(f'"part{place}": {value}' for place, value in enumerate(more))
    return "{" + f'"y": x, {pairs}' + "}"


if __name__ == "__main__":
    main(compose_outside)
