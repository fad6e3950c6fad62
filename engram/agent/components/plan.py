"""The plan of a YAML policy for one environment: the components it has a use for, with the shapes between them."""

from dataclasses import dataclass, replace

from engram.agent.components.component import Component, Source
from engram.agent.components.graph import OBSERVATION, OUTPUTS, REQUIRED, Graph, ancestors, check_count
from engram.agent.components.kind import Kind
from engram.agent.components.problems import Problems
from engram.agent.components.shapes import BRIDGES, OBSERVED, SLICED, MisfitError, Shape, Target, action_form, observed


@dataclass(frozen=True)
class Step:
    """A component that is sure to fit."""

    name: str
    kind: str
    sources: tuple[Source, ...]
    options: Kind
    inputs: tuple[Shape, ...]
    output: Shape


def make_plan(graph: Graph, target: Target) -> list[Step]:
    """The steps of a forward pass. Whatever does not fit together is added to the graph's problems and left out."""
    kept = _select(graph, target)
    shapes: dict[str, Shape | None] = {OBSERVATION: observed(target.spec)}
    steps: dict[str, Step] = {}
    for name, component in kept.items():
        step = _fit(component, shapes, target, graph.problems)
        shapes[name] = _shape_anyway(component, target) if step is None else step.output
        if step is not None:
            steps[name] = step
    _check_outputs(shapes, target, graph.problems)
    used = ancestors(kept, OUTPUTS)
    return [step for name, step in steps.items() if name in used]


def _select(graph: Graph, target: Target) -> dict[str, Component]:
    """The components for this environment: not those for another one, nor those all of whose sources are."""
    spec = target.spec
    has = (None, spec.observation_kind, action_form(spec))
    kept: dict[str, Component] = {}
    for name, component in graph.components.items():
        sources = tuple(s for s in component.sources if s.name in kept or s.name == OBSERVATION)
        if component.need in has and (sources or not component.sources):
            kept[name] = replace(component, sources=sources)
    lost = [name for name in graph.components if name in REQUIRED and name not in kept]
    if lost:
        kept = {name: component for name, component in kept.items() if name not in OUTPUTS}
        graph.problems.note(
            lost[0],
            f"left out, as nothing that leads to it is for {spec.name} ({spec.observation_kind} observations, "
            f"{action_form(spec)} actions): add a component with `for: {spec.observation_kind}` to its sources",
        )
    return kept


def _fit(component: Component, shapes: dict[str, Shape | None], target: Target, problems: Problems) -> Step | None:
    """The component with the shapes it reads and gives; None when there is a mistake here or in what leads here."""
    options = component.options
    if not check_count(component, problems) or options is None:
        return None
    inputs = [_read(component, source, shapes[source.name], problems) for source in component.sources]
    known = tuple(shape for shape in inputs if shape is not None)
    if len(known) < len(inputs):
        return None
    try:
        output = options.shape(known, target)
    except MisfitError as misfit:
        problems.note(component.name, f"{component.kind} {misfit}")
        return None
    return Step(component.name, component.kind, component.sources, options, known, output)


def _shape_anyway(component: Component, target: Target) -> Shape | None:
    """The shape of a component that is known despite a mistake before it, so that what follows can be judged."""
    options = component.options
    return options.shape((), target) if options is not None and options.same_for_all_inputs else None


def _read(component: Component, source: Source, shape: Shape | None, problems: Problems) -> Shape | None:
    """What a component gets from a source; None if that is not known or not what it reads."""
    assert component.options is not None
    if shape is None:
        return None
    reads = component.options.reads
    if shape.form not in reads:
        ways = [BRIDGES[shape.form, form] for form in reads if (shape.form, form) in BRIDGES]
        if source.name == OBSERVATION:
            ways += [f"leave it out here with `for: {OBSERVED[form]}`" for form in reads if form in OBSERVED]
        got = f"{component.kind} reads {' or '.join(reads)}, got {shape} from {source.name}"
        problems.note(component.name, f"{got}: {', or '.join(ways) or 'give it another source'}")
        return None
    if not source.is_part:
        return shape
    return _part(component, source, shape, problems)


def _part(component: Component, source: Source, shape: Shape, problems: Problems) -> Shape | None:
    size = shape.sizes[0]
    start, stop, _ = slice(source.start, source.stop).indices(size)
    beyond = any(end is not None and abs(end) > size for end in (source.start, source.stop))
    if shape.form not in SLICED:
        problem = f"{source}: only {', '.join(SLICED)} have parts, got {shape}: take the whole"
    elif beyond or start >= stop:
        problem = f"{source}: no such part of {shape}: {size} are there to choose from, counted from 0"
    else:
        return Shape(shape.form, (stop - start, *shape.sizes[1:]))
    problems.note(f"{component.name}.sources", problem)
    return None


def _check_outputs(shapes: dict[str, Shape | None], target: Target, problems: Problems) -> None:
    for name, expected, fix in (("_action_", target.logits, "size: actions"), ("_value_", 1, "size: 1")):
        shape = shapes.get(name)
        if shape is not None and shape != Shape("features", (expected,)):
            problems.note(name, f"gives {shape}, expected features [{expected}]: make it a linear of {fix}")
