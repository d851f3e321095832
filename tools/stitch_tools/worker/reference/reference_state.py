"""What the reference server holds between requests: the module, the current draw, what is expected of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from stitch_tools.protocol.layout import BUFFER, INPUT
from stitch_tools.protocol.memory_faults import is_out_of_memory
from stitch_tools.worker.order_one_weights import Scale
from stitch_tools.worker.precision import precision
from stitch_tools.worker.random_streams import (
    GeneratorState,
    generator_state,
    pack_torch_state,
    seed_generators,
)
from stitch_tools.worker.reference.coarse_products import coarser_products
from stitch_tools.worker.reference.compare import OutputComparison, compare_output
from stitch_tools.worker.reference.draw_kinds import EXACT, MIXED
from stitch_tools.worker.reference.draws import DrawUnavailableError, InputBounds, make_draw
from stitch_tools.worker.reference.kernelbench import Agreement, agreement
from stitch_tools.worker.reference.load_reference import LoadedReference, ReferenceFault, ReferenceSource
from stitch_tools.worker.reference.narrowest_type import narrowest_eps
from stitch_tools.worker.reference.oracle import OracleRun, run_oracle
from stitch_tools.worker.reference.oracle_memory import (
    OraclePlace,
    give_back_kept_memory,
    oracle_places,
)
from stitch_tools.worker.reference.random_rounding import other_roundings
from stitch_tools.worker.reference.reference_calls import (
    ReferenceCall,
    all_buffers,
    call_reference,
    kept_generators,
)
from stitch_tools.worker.reference.rounding_allowance import (
    EqualityRule,
    Evaluations,
    Expected,
    Honest,
    honest_of,
)
from stitch_tools.worker.reference.rounding_depth import Rounding
from stitch_tools.worker.trees import computable, flatten_inputs

_NO_MEMORY = "not enough memory for the reference in fp64"


@dataclass(frozen=True)
class ServerSettings:
    """The contract's fields that the server needs."""

    rtol: float = 1e-3
    atol: float = 1e-5
    matmul_precision: str = "fp32"
    conv_precision: str = "fp32"
    bounds: InputBounds = field(default_factory=InputBounds)
    input_writes: bool = True
    """Whether a program must write to its inputs what the reference does."""


@dataclass
class ServedDraw:
    """One set of inputs, and what the reference makes of it."""

    kind: str
    arguments: object
    """Masters; never handed out themselves."""
    forward_seed: int
    shared: tuple[torch.Tensor, ...] | None = None
    """The inputs' memory that the worker may write to, where it was given such."""
    call: ReferenceCall | None = None
    oracle_kind: str = "none"
    place: OraclePlace | None = None
    """Where the oracle ran; None: it did not."""
    memory_short: bool = False
    """Whether the oracle did not run where it runs best because there was no memory for it."""
    rounded_otherwise: bool = False
    """Whether evaluations that round otherwise than the reference count already."""
    notes: tuple[str, ...] = ()
    expected: tuple[Expected, ...] = ()
    expected_inputs: tuple[Expected, ...] = ()
    """Inputs that forward writes to, and what they hold afterwards."""

    @property
    def rows(self) -> tuple[Expected, ...]:
        """All that is expected."""
        return (*self.expected, *self.expected_inputs)

    def set_honest(self, result: Mapping[str, Honest]) -> None:
        """Remember of each row what honest evaluations of it are off by."""
        rows = tuple(replace(row, honest=result[row.name]) for row in self.rows)
        count = len(self.expected)
        self.expected, self.expected_inputs = rows[:count], rows[count:]


class ServerState:
    """Everything between two requests. `module` and `arguments` are for handlers that other rooms add."""

    def __init__(self) -> None:
        self.reference: LoadedReference | None = None
        self.module: torch.nn.Module | None = None
        self.settings = ServerSettings()
        self.draw: ServedDraw | None = None
        self.finite_on_own = True
        self._narrowest: float | None = None
        self.own_weights = True
        """Whether the weights are what the task's own initialisers give."""

    @property
    def arguments(self) -> object:
        """Inputs of the current draw (the task's own when none was made yet)."""
        return self._need_draw().arguments

    def load(self, source: ReferenceSource, settings: ServerSettings) -> None:
        """Execute the user's file.

        Raises:
            ReferenceFault: the reference cannot be loaded.
        """
        self.module, self.draw = None, None
        self.reference, self.settings = LoadedReference(source), settings

    def need(self) -> tuple[LoadedReference, torch.nn.Module]:
        """Reference and module.

        Raises:
            ReferenceFault: nothing is loaded; a mistake of the caller.
        """
        if self.reference is None or self.module is None:
            raise ReferenceFault("not_loaded", "load and set_weights come first")
        return self.reference, self.module

    def set_weights(self, seed: int, scale: Scale | None = None) -> bytes:
        """Construct the module anew; returns the generator state that its constructor started from.

        Raises:
            DrawUnavailableError: weights of order 1 (`scale`) are asked for, and the module has none to fill.
        """
        if self.reference is None:
            raise ReferenceFault("not_loaded", "load comes first")
        self.module, self.draw = None, None
        self.own_weights = scale is None
        self.module, state = self.reference.construct(seed, scale)
        if scale is not None and not self.reference.filled:
            raise DrawUnavailableError("the reference has no trainable weights")
        return state

    def make_draw(self, kind: str, seed: int, forward_seed: int) -> ServedDraw:
        """Inputs of the next draw; the one before is forgotten."""
        reference, _ = self.need()
        self.draw = None
        self.draw = ServedDraw(kind, make_draw(reference, kind, seed, self.settings.bounds), forward_seed)
        return self.draw

    def expect(self, updated_buffers: tuple[str, ...]) -> ServedDraw:
        """Run reference and oracle on the current draw.

        Raises:
            ReferenceFault: forward raises on these inputs.
        """
        reference, module = self.need()
        draw = self._need_draw()
        settings = self.settings
        if self._narrowest is None:

            def forward() -> object:
                return call_reference(reference, module, draw.arguments, forward_seed=draw.forward_seed)

            self._narrowest = narrowest_eps(forward)
        with precision(settings.matmul_precision, settings.conv_precision):
            draw.call = call_reference(reference, module, draw.arguments, forward_seed=draw.forward_seed)
        oracle = self._run_oracle(draw, draw.call)
        draw.expected = _expectations(draw.call, oracle, updated_buffers, all_buffers(module))
        draw.expected_inputs = _written_inputs(draw.call, oracle) if settings.input_writes else ()
        rule = self._rule(draw)
        draw.set_honest({row.name: honest_of(row, rule) for row in draw.rows})
        if self._is_own(draw):
            self.finite_on_own = self.finite_on_own and _all_finite(draw.expected)
        return draw

    def unusable(self) -> str | None:
        """Why the current draw, when it is one of ours, is not to be judged at all; None when it is."""
        draw = self._need_draw()
        if self._is_own(draw):
            return None
        # Where nothing is rounded, a division by zero is what the reference means.
        meant = draw.kind in EXACT and all(map(_alike_in_fp64, draw.expected))
        if self.finite_on_own and not meant and not _all_finite(draw.expected):
            return "the reference's output is not finite on it"
        return None

    def undecided(self) -> str | None:
        """Why nothing about the current draw, when it is one of ours, can be told right from wrong."""
        draw = self._need_draw()
        if self._is_own(draw):
            return None
        rows = [row for row in draw.expected if row.reference.numel() and row.honest is not None]
        if not rows or not all(row.honest is not None and row.honest.wholly_undecided for row in rows):
            return None
        return f"output {rows[0].name}: {rows[0].honest.because if rows[0].honest else ''}"

    def compare(self, actual: list[torch.Tensor]) -> list[OutputComparison]:
        """How the outputs compare; then the updated buffers, and inputs that forward has to write to."""
        draw = self._need_draw()
        rows, values = draw.expected, actual
        if draw.shared is not None and draw.expected_inputs:
            names = flatten_inputs(draw.arguments).names
            written = dict(zip(names, draw.shared, strict=True))
            # Copies: the program may go on writing there while they are compared.
            values = actual + [written[row.name.removeprefix(INPUT)].clone() for row in draw.expected_inputs]
            rows += draw.expected_inputs
        verdicts = self._verdicts(values, rows)
        wrong = [row for row in verdicts if row.problem]
        if wrong and all(row.is_open for row in wrong) and not draw.rounded_otherwise:
            self._add_other_roundings(draw)
            verdicts = self._verdicts(values, draw.rows[: len(values)])
        return self._explained(draw, values, verdicts)

    def _verdicts(self, values: list[torch.Tensor], rows: tuple[Expected, ...]) -> list[OutputComparison]:
        rule = self._rule(self._need_draw())
        pairs = zip(values, rows, strict=True)
        return [compare_output(value.to(row.reference.device), row, rule) for value, row in pairs]

    def _explained(
        self, draw: ServedDraw, values: list[torch.Tensor], verdicts: list[OutputComparison]
    ) -> list[OutputComparison]:
        """The verdicts; where all that is wrong looks like products in a coarser format, with that format."""
        rows = zip(values, draw.rows, verdicts, strict=False)
        wrong = [(value.to(row.reference.device), row) for value, row, verdict in rows if verdict.problem]
        if not wrong or draw.place is None:
            return verdicts
        place, module = draw.place, self.need()[1]

        def sample(formats: tuple[str, str]) -> dict[str, torch.Tensor]:
            with kept_generators():
                runs = other_roundings(
                    module,
                    draw.arguments,
                    formats,
                    samples=1,
                    forward_seed=draw.forward_seed,
                    device=place.device,
                )
                return _named_values(next(runs))

        coarser = coarser_products(wrong, self._rule(draw), sample)
        if coarser is None:
            return verdicts
        return [
            replace(row, allow=coarser.allow, allow_rtol=coarser.rtol) if row.problem else row
            for row in verdicts
        ]

    def agrees_with_reference(self, actual: list[torch.Tensor]) -> Agreement | None:
        """What KernelBench's rule says of the outputs; None on draws that are not the task's own."""
        draw = self._need_draw()
        if not self._is_own(draw) or draw.call is None:
            return None
        return agreement(actual[: len(draw.call.outputs.tensors)], draw.call.outputs.tensors)

    def forward_state(self) -> bytes:
        """The generator state that forward starts from, for a program that draws random numbers itself."""
        with kept_generators():
            seed_generators(self._need_draw().forward_seed)
            return pack_torch_state()

    def end_state(self) -> GeneratorState | None:
        """The generators after the reference's call."""
        call = self._need_draw().call
        return call.generators_after if call else None

    def _is_own(self, draw: ServedDraw) -> bool:
        return self.own_weights and draw.kind.startswith(("own", "maker-"))

    def _need_draw(self) -> ServedDraw:
        if self.draw is None:
            raise ReferenceFault("not_loaded", "make_draw comes first")
        return self.draw

    def _rule(self, draw: ServedDraw) -> EqualityRule:
        settings = self.settings
        made_up = not self._is_own(draw)
        return EqualityRule(
            settings.rtol,
            settings.atol,
            settings.matmul_precision,
            settings.conv_precision,
            structured=made_up and not draw.kind.startswith(("batch-", MIXED)),
            # Stretches of two of the task's own draws are the maker's values.
            made_up=made_up and not draw.kind.startswith(MIXED),
            narrowest=self._narrowest or 0.0,
        )

    def _add_other_roundings(self, draw: ServedDraw) -> None:
        """Count evaluations that round otherwise than the reference beside its own error."""
        draw.rounded_otherwise = True
        if draw.place is None:
            return
        evaluations = {row.name: Evaluations(row) for row in draw.rows}
        formats = self.settings.matmul_precision, self.settings.conv_precision
        runs = other_roundings(
            self.need()[1],
            draw.arguments,
            formats,
            forward_seed=draw.forward_seed,
            device=draw.place.device,
        )
        with kept_generators():
            try:
                for run in runs:
                    for name, value in _named_values(run).items():
                        if name in evaluations:
                            evaluations[name].add(value)
            except Exception as error:
                # Foreign code may refuse numbers that differ by a bit: then what there is counts.
                for row in evaluations.values():
                    row.incomplete = is_out_of_memory(error)
        rule = self._rule(draw)
        draw.set_honest({name: row.conclude(rule) for name, row in evaluations.items()})

    def _run_oracle(self, draw: ServedDraw, call: ReferenceCall) -> OracleRun | None:
        reference, module = self.need()
        draw.oracle_kind, draw.notes = "fp32-strict", (_NO_MEMORY,)
        weights = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
        values = (*flatten_inputs(draw.arguments).tensors, *call.outputs.tensors)
        # Twice as wide at least; what there is of inputs and outputs is copied once more to be compared.
        needed = 2 * weights + 3 * sum(tensor.nbytes for tensor in values)
        for place in oracle_places(reference.source.device, needed):
            try:
                oracle = run_oracle(
                    module, draw.arguments, forward_seed=draw.forward_seed, device=place.device
                )
            except Exception as error:  # foreign code that meets fp64 may raise anything
                if is_out_of_memory(error):  # more than was foreseen: there may be another place
                    give_back_kept_memory()
                    continue
                where = f" on the {place.device}" if place.device else ""
                reason = f"{type(error).__name__}: {str(error)[:300]}"
                draw.notes = (f"the reference does not run in fp64{where}: {reason}",)
                return None
            if not generator_state().same_as(call.generators_after):
                draw.notes = ("in fp64 the reference draws other random numbers",)
                return None
            strict = ", ".join(oracle.strict_ops)
            draw.oracle_kind, draw.place = "fp64-partial" if strict else place.kind, place
            draw.memory_short = place.kind != "fp64"
            draw.notes = (f"without fp64: {strict}",) if strict else ()
            return oracle
        draw.memory_short = True
        return None


def _expectations(
    call: ReferenceCall,
    oracle: OracleRun | None,
    buffers: tuple[str, ...],
    unchanged: dict[str, torch.Tensor],
) -> tuple[Expected, ...]:
    rows: list[Expected] = []
    for index, (name, tensor) in enumerate(zip(call.outputs.names, call.outputs.tensors, strict=True)):
        if oracle is None or oracle.outputs.tensors[index].shape != tensor.shape:
            rows.append(Expected(name, tensor, _wide(tensor), Rounding.unknown(tensor.dtype)))
            continue
        truth = oracle.outputs.tensors[index].to(tensor.device)
        rows.append(Expected(name, tensor, truth, oracle.rounding[index], oracle.margins[index]))
    path = Rounding.worst([row.rounding for row in rows])
    for name in buffers:
        tensor = call.buffers_after[name] if name in call.buffers_after else unchanged[name]
        truth = oracle.buffers[name].to(tensor.device) if oracle else _wide(tensor)
        rows.append(Expected(f"{BUFFER}{name}", tensor, truth, path))
    return tuple(rows)


def _named_values(run: OracleRun) -> dict[str, torch.Tensor]:
    """Outputs, buffers and inputs after the call, by the names of what is expected."""
    values = dict(zip(run.outputs.names, run.outputs.tensors, strict=True))
    values |= {f"{BUFFER}{name}": value for name, value in run.buffers.items()}
    return values | {f"{INPUT}{name}": value for name, value in run.inputs.items()}


def _written_inputs(call: ReferenceCall, oracle: OracleRun | None) -> tuple[Expected, ...]:
    rows: list[Expected] = []
    for name, tensor in call.inputs_after.items():
        truth = oracle.inputs[name].to(tensor.device) if oracle else _wide(tensor)
        path = Rounding.worst(oracle.rounding) if oracle else Rounding.unknown(tensor.dtype)
        rows.append(Expected(f"{INPUT}{name}", tensor, truth, path))
    return tuple(rows)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _alike_in_fp64(row: Expected) -> bool:
    """Whether the oracle is finite exactly where the reference is."""
    return not row.reference.is_floating_point() or torch.equal(
        computable(row.reference).isfinite(), row.oracle.isfinite()
    )


def _all_finite(rows: tuple[Expected, ...]) -> bool:
    floats = [row.reference for row in rows if row.reference.is_floating_point()]
    return all(bool(computable(value).isfinite().all()) for value in floats)
