"""Finds the step at which a wrong program differs first: its intermediate tensors beside the reference's.

A program that calls STITCH_BORDER is built again with an output for each border, and the reference is made
to return what its submodules of those names return. Then it is an ordinary check: same draws, same bounds.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stitch_tools.compile.build import compile_program, sources_of
from stitch_tools.errors import StitchError
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import Program
from stitch_tools.models.task import ReferenceFacts, Task, TensorSpec
from stitch_tools.models.verdict import BorderResult, Check
from stitch_tools.run.reference_server import ReferenceServer

CheckProgram = Callable[[Trial, CheckOptions], Check]
_CALL = re.compile(r"\bSTITCH_BORDER\s*\(\s*\"([^\"\\]+)\"")
_MOST = 64
"""Borders that are compared; the first ones in the program's text."""
_RESULT = "result"
_NO_SUBMODULE = "the reference has no submodule of this name that its forward calls and that gives a tensor"
_DTYPES = {
    "float64": (2, 64),
    "float32": (2, 32),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "complex64": (5, 64),
    "int64": (0, 64),
    "int32": (0, 32),
    "uint8": (1, 8),
    "bool": (6, 8),
}
"""Code and bits of DLPack; a border of another type is not compared."""
_REFERENCE = """

class StitchBordered({entry}):
    def forward(self, *args, **kwargs):
        seen, modules = {{}}, dict(self.named_modules())

        def keep(name):
            def hook(module, given, returned):
                while isinstance(returned, (tuple, list)) and returned:
                    returned = returned[0]
                if name not in seen and str(getattr(returned, "dtype", ""))[6:] in {dtypes!r}:
                    seen[name] = returned.detach().clone()

            return hook

        hooks = [modules[name].register_forward_hook(keep(name)) for name in {names!r} if name in modules]
        try:
            result = super().forward(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
        return {{**seen, {result!r}: result}}
"""


def compare_borders(trial: Trial, options: CheckOptions, check: CheckProgram) -> tuple[BorderResult, ...]:
    """The borders of a wrong native program; () where it shows none.

    Args:
        trial: the program as it was judged wrong.
        options: those of its check.
        check: judges a trial.
    """
    names = border_names("\n".join(sources_of(trial.program, trial.store).values()))
    if not names or trial.program.format != "native" or trial.is_late:
        return ()
    if trial.task.style != "kernelbench":
        return _not_compared(names, "only borders of a reference that is a class are compared")
    trial.say(f"comparing {len(names)} borders of the program")
    try:
        return _compared(trial, options, check, names)
    except StitchError as error:
        return _not_compared(names, error.message[:300])


def border_names(source: str) -> tuple[str, ...]:
    """The names that a program's text gives to its borders, each once."""
    return tuple(dict.fromkeys(_CALL.findall(source)))[:_MOST]


def describe_borders(borders: Sequence[BorderResult]) -> str:
    """What the borders say of where the fault lies, as the end of a sentence; "" where they say nothing."""
    wrong = next((row.name for row in borders if row.ok is False), None)
    if wrong is not None:
        return f"; of the steps that it shows, {wrong} is the first that differs"
    right = [row.name for row in borders if row.ok]
    return f"; it is right as far as {right[-1]}, the last step that it shows" if right else ""


def _compared(
    trial: Trial, options: CheckOptions, check: CheckProgram, names: Sequence[str]
) -> tuple[BorderResult, ...]:
    task = _bordered_task(trial, names)
    with ReferenceServer(trial.session, task, trial.store) as reference:
        facts = reference.observe()
        specs = _borders_of(facts)
        if not specs:
            return _not_compared(names, _NO_SUBMODULE)
        program = _bordered_program(trial, specs)
        built = compile_program(
            program,
            trial.store,
            cache_dir=options.cache_dir,
            emit=trial.emit,
            prefixes=(trial.session.interpreter.prefix,),
            require_sandbox=trial.session.sandbox_level,
        )
        bordered = replace(
            trial, task=task, program=program, build=built, facts=facts, reference=reference, emit=None
        )
        found = check(bordered, _few(options))
    return tuple(_results(found, specs, names))


def _bordered_task(trial: Trial, names: Sequence[str]) -> Task:
    task = trial.task
    files = {file.path: trial.store.get(file.sha256) for file in task.files}
    addition = _REFERENCE.format(entry=task.entry, names=list(names), dtypes=list(_DTYPES), result=_RESULT)
    files[task.main] += addition.encode("utf-8")
    return task.model_copy(update={"files": trial.store.put_files(files), "entry": "StitchBordered"})


def _borders_of(facts: ReferenceFacts) -> dict[str, TensorSpec]:
    """The borders that the reference has, in the order in which it computes them."""
    structure = json.loads(facts.output_structure)
    names = [name for name in structure["dict"] if name != _RESULT]
    return dict(zip(names, facts.outputs, strict=False))


def _bordered_program(trial: Trial, specs: Mapping[str, TensorSpec]) -> Program:
    program = trial.program
    suffix = program.main.rpartition(".")[2]
    main = next(
        name
        for number in range(len(program.files) + 1)
        if (name := f"stitch_borders{number or ''}.{suffix}") not in {file.path for file in program.files}
    )
    files = {file.path: trial.store.get(file.sha256) for file in program.files}
    files[main] = _main_file(program.main, specs).encode("utf-8")
    return program.model_copy(update={"files": trial.store.put_files(files), "main": main})


def _main_file(included: str, specs: Mapping[str, TensorSpec]) -> str:
    rows = [_row(name, spec) for name, spec in specs.items()]
    lines = [
        "#define STITCH_BORDERS",
        "#define stitch_plan program_stitch_plan",
        "#define stitch_forward program_stitch_forward",
        f'#include "{included}"',
        "#undef stitch_plan",
        "#undef stitch_forward",
        f"static const StitchBorderSpec stitch_border_specs[] = {{{', '.join(rows)}}};",
        '#include "stitch/borders.h"',
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, spec: TensorSpec) -> str:
    code, bits = _DTYPES[spec.dtype]
    shape = ", ".join(map(str, spec.shape)) or "0"
    return f'{{"{name}", {len(spec.shape)}, {{{code}, {bits}, 1}}, {{{shape}}}}}'


def _few(options: CheckOptions) -> CheckOptions:
    """Draws of the same kinds, until one is wrong; nothing else is asked."""
    return replace(
        options,
        static=False,
        batch_probe=False,
        variants=False,
        repeat=False,
        late_repeat=False,
        sensitivity=False,
        trace=False,
        borders=False,
        max_failures=1,
    )


def _results(check: Check, specs: Mapping[str, TensorSpec], names: Sequence[str]) -> list[BorderResult]:
    wrong = next((draw for draw in check.draws if not draw.ok and draw.outputs), None)
    results: list[BorderResult] = []
    for name in specs:
        row = next((row for row in wrong.outputs if row.output == name), None) if wrong else None
        if wrong is None or row is None:
            reason = "no draw of the built borders is wrong" if check.status == "accepted" else check.message
            results.append(BorderResult(name=name, ok=None, problem=reason[:300]))
            continue
        results.append(
            BorderResult(name=name, ok=row.problem is None, problem=_problem(row.problem, wrong.draw))
        )
    return [*results, *_not_compared([name for name in names if name not in specs], _NO_SUBMODULE)]


def _problem(problem: str | None, draw: str) -> str:
    return "" if problem is None else f"draw {draw}: {problem}"


def _not_compared(names: Sequence[str], reason: str) -> tuple[BorderResult, ...]:
    return tuple(BorderResult(name=name, ok=None, problem=reason) for name in names)
