"""The plan of a YAML policy for one environment: the components it uses, with their input and output shapes."""

from dataclasses import dataclass, replace

from engram.agent.components.component import BuildContext, Component, Form, Shape, ShapeError
from engram.agent.components.graph import OBSERVATION, OUTPUTS, REQUIRED, Graph, ancestors, check_source_count
from engram.agent.components.node import Node, NodeInput, Problems
from engram.env.spec import EnvSpec

# The `for:` condition that stands for observations of each form.
CONDITION_OF_FORM = {form: form for form in ("tokens", "image", "symbols", "parts")} | {"features": "vector"}
SLICEABLE = ("box", "sequence", "features")  # forms that can be sliced, along their first dimension

CONVERSIONS: dict[tuple[Form, Form], str] = {  # (form given, form read) -> how to convert
    ("tokens", "located tokens"): "put a value_norm between",
    ("tokens", "embedded tokens"): "put a value_norm and a fourier_embedding between",
    ("tokens", "box"): "put a tokens_to_box and a normaliser between, or use token_conv2d",
    ("tokens", "features"): "put a token_conv2d and a flatten between",
    ("located tokens", "embedded tokens"): "put a fourier_embedding between",
    ("embedded tokens", "sequence"): "put a latent_attention between",
    ("embedded tokens", "features"): "put a latent_attention of one query between",
    ("image", "features"): "put an image_encoder between",
    ("symbols", "features"): "put a parts_encoder between",
    ("parts", "features"): "put a parts_encoder between",
    ("box", "features"): "put a flatten between",
    ("sequence", "features"): "put a self_attention or a flatten between",
}


@dataclass(frozen=True)
class PlanStep:
    """One component of the forward pass, with its input and output shapes."""

    name: str
    sources: tuple[NodeInput, ...]
    component: Component
    inputs: tuple[Shape, ...]
    output: Shape


def make_plan(graph: Graph, context: BuildContext) -> list[PlanStep]:
    """The steps of a forward pass. Nodes with mistakes are left out and reported in the graph's problems."""
    nodes = _select(graph, context)
    shapes: dict[str, Shape | None] = {OBSERVATION: _observation_shape(context.spec)}
    steps: dict[str, PlanStep] = {}
    for name, node in nodes.items():
        step = _make_step(node, shapes, context, graph.problems)
        shapes[name] = _fallback_shape(node, context) if step is None else step.output
        if step is not None:
            steps[name] = step
    _check_outputs(shapes, context, graph.problems)
    used = ancestors(nodes, OUTPUTS)
    return [step for name, step in steps.items() if name in used]


def _observation_shape(spec: EnvSpec) -> Shape:
    if spec.observation_kind == "parts":
        return Shape("parts", (len(spec.parts),))
    form = "features" if spec.observation_kind == "vector" else spec.observation_kind
    return Shape(form, tuple(spec.all_parts[0].shape))


def _select(graph: Graph, context: BuildContext) -> dict[str, Node]:
    """The nodes whose conditions this environment meets, and that have at least one source left."""
    from engram.agent.event_counts import counted_parts  # imports torch, and graphs are read without it

    spec, actions = context.spec, "continuous" if context.continuous else "discrete"
    met = {spec.observation_kind, actions}
    if spec.observation_kind != "tokens":
        met.add("no_tokens")
    if spec.only_symbols and counted_parts(spec):
        met.add("countable")
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        sources = tuple(s for s in node.sources if s.name in nodes or s.name == OBSERVATION)
        if met.issuperset(node.conditions) and (sources or not node.sources):
            nodes[name] = replace(node, sources=sources)
    missing = [name for name in graph.nodes if name in REQUIRED and name not in nodes]
    if missing:
        nodes = {name: node for name, node in nodes.items() if name not in OUTPUTS}
        graph.problems.add(
            missing[0],
            f"left out, since none of its sources is for {spec.name} ({spec.observation_kind} observations, "
            f"{actions} actions): add a component with `for: {spec.observation_kind}` to its sources",
        )
    return nodes


def _make_step(
    node: Node, shapes: dict[str, Shape | None], context: BuildContext, problems: Problems
) -> PlanStep | None:
    """The node with its input and output shapes; None if it or one of its sources has a mistake."""
    component = node.component
    if not check_source_count(node, problems) or component is None:
        return None
    inputs = [_input_shape(node, component, source, shapes[source.name], problems) for source in node.sources]
    known = tuple(shape for shape in inputs if shape is not None)
    if len(known) < len(inputs):
        return None
    try:
        output = component.output_shape(known, context)
    except ShapeError as error:
        problems.add(node.name, f"{node.kind} {error}")
        return None
    return PlanStep(node.name, node.sources, component, known, output)


def _fallback_shape(node: Node, context: BuildContext) -> Shape | None:
    """The output shape of a node with wrong inputs, if it does not depend on them, so that checking continues."""
    component = node.component
    return component.output_shape((), context) if component is not None and component.fixed_shape else None


def _input_shape(
    node: Node, component: Component, source: NodeInput, shape: Shape | None, problems: Problems
) -> Shape | None:
    """The shape a node gets from a source; None if it is unknown or of a form the component does not read."""
    if shape is None:
        return None
    if shape.form not in component.reads:
        fixes = [CONVERSIONS[shape.form, form] for form in component.reads if (shape.form, form) in CONVERSIONS]
        if source.name == OBSERVATION:
            conditions = [CONDITION_OF_FORM[form] for form in component.reads if form in CONDITION_OF_FORM]
            fixes += [f"leave it out here with `for: {condition}`" for condition in conditions]
        got = f"{node.kind} reads {' or '.join(component.reads)}, got {shape} from {source.name}"
        problems.add(node.name, f"{got}: {', or '.join(fixes) or 'give it a different source'}")
        return None
    return _slice_shape(node, source, shape, problems) if source.is_slice else shape


def _slice_shape(node: Node, source: NodeInput, shape: Shape, problems: Problems) -> Shape | None:
    size = shape.sizes[0]
    start, stop, _ = slice(source.start, source.stop).indices(size)
    out_of_range = any(end is not None and abs(end) > size for end in (source.start, source.stop))
    if shape.form not in SLICEABLE:
        problem = f"{source}: only {', '.join(SLICEABLE)} can be sliced, got {shape}: read all of it"
    elif out_of_range or start >= stop:
        problem = f"{source}: out of range for {shape}: its first size is {size}, counted from 0"
    else:
        return Shape(shape.form, (stop - start, *shape.sizes[1:]))
    problems.add(f"{node.name}.sources", problem)
    return None


def _check_outputs(shapes: dict[str, Shape | None], context: BuildContext, problems: Problems) -> None:
    for name, expected, fix in (("_action_", context.logits, "size: actions"), ("_value_", 1, "size: 1")):
        shape = shapes.get(name)
        if shape is not None and shape != Shape("features", (expected,)):
            problems.add(name, f"gives {shape}, expected features [{expected}]: make it a linear of {fix}")
