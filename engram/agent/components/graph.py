"""Graph: the nodes of a YAML policy in topological order, and every mistake in it.

Imports no torch, so that a file is checked before anything is built.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from engram.agent.components import COMPONENTS
from engram.agent.components.component import Component
from engram.agent.components.heads import ActionEmbeddingComponent, CoreComponent
from engram.agent.components.node import Node, Problems, read_node
from engram.nearest import nearest, suggestion

OBSERVATION = "_obs_"
OUTPUTS = ("_action_", "_value_")
REQUIRED = ("_core_", *OUTPUTS)
ROLES = {  # reserved names -> what each is for
    "_core_": "the recurrent core: lstm, gru, mingru, lru or attention",
    "_action_embeds_": "the embedding of actions: action_embedding",
    "_action_": "the logits: actor, big_actor, or a linear of size: actions",
    "_value_": "the value, a linear of size: 1",
}
ROLE_CLASSES: dict[str, type[Component]] = {"_core_": CoreComponent, "_action_embeds_": ActionEmbeddingComponent}

NAME = re.compile(r"[A-Za-z_]\w*")
MAX_COMPONENTS = 500
MAX_SHOWN_SOURCES = 6  # in a message


@dataclass
class Graph:
    nodes: dict[str, Node] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)


def read_graph(data: object) -> Graph:
    """The graph from {name: {kind, sources, for, and the component's options}}."""
    graph = Graph()
    if not isinstance(data, Mapping):
        graph.problems.add("", f"got a {type(data).__name__}, expected component names with their options")
        return graph
    if len(data) > MAX_COMPONENTS:
        graph.problems.add("", f"{len(data):,} components, expected at most {MAX_COMPONENTS:,}")
        return graph
    given_names = {str(key) for key in data}
    for key, content in data.items():
        name = _read_name(str(key), given_names, graph.problems)
        if name is not None:
            graph.nodes[name] = read_node(name, content, graph.problems)
    _check_sources(graph)
    _check_roles(graph)
    _check_unused(graph)
    _sort(graph)
    _check_source_counts(graph)
    return graph


def check_source_count(node: Node, problems: Problems) -> bool:
    """Whether a node has as many sources as its component takes."""
    if node.component is None or not node.sources_valid:
        return False
    minimum, maximum = node.component.num_sources
    count = len(node.sources)
    if minimum <= count and (maximum is None or count <= maximum):
        return True
    shown = [*map(str, node.sources[:MAX_SHOWN_SOURCES]), *(["…"] if count > MAX_SHOWN_SOURCES else [])]
    got = f"{count} ({', '.join(shown)})" if count else "none"
    if count < minimum:
        fix = "name what it reads"
    else:
        fix = "remove them" if maximum == 0 else "merge them first, with a concat"
    expected = _describe_source_count(minimum, maximum)
    problems.add(f"{node.name}.sources", f"{node.kind} takes {expected}, got {got}: {fix}")
    return False


def _describe_source_count(minimum: int, maximum: int | None) -> str:
    if maximum is None:
        number = f"at least {minimum}"
    elif maximum == 0:
        number = "no"
    else:
        number = f"{minimum}" if maximum == minimum else f"{minimum} or {maximum}"
    return f"{number} source{'' if number.endswith('1') else 's'}"


def ancestors(nodes: Mapping[str, Node], names: Iterable[str]) -> set[str]:
    """These nodes and everything they depend on."""
    found: set[str] = set()
    queue = [*names]
    while queue:
        name = queue.pop()
        if name in nodes and name not in found:
            found.add(name)
            queue.extend(source.name for source in nodes[name].sources)
    return found


def _read_name(name: str, given_names: set[str], problems: Problems) -> str | None:
    """The name, corrected if it is nearly one of ROLES; None if it cannot be used at all."""
    if name == OBSERVATION:
        problems.add(name, "reserved for the observation: rename the component")
        return None
    if not NAME.fullmatch(name):
        problems.add(name, "invalid name: use letters, digits and underscores, starting with a letter")
        return None
    if name.startswith("_") and name not in ROLES:
        unused = [role for role in ROLES if role not in given_names]
        hint = "" if problems.too_many_for_hints else suggestion(name, unused, otherwise=": rename it")
        problems.add(name, f"only {', '.join(ROLES)} may start with an underscore{hint}")
        return nearest(name, unused) or name
    return name


def _check_sources(graph: Graph) -> None:
    """Report unknown sources, and replace each by the nearest existing one."""
    existing = dict.fromkeys([OBSERVATION, *graph.nodes])
    for name, node in graph.nodes.items():
        if graph.problems.too_many_for_hints:
            known = tuple(source for source in node.sources if source.name in existing)
            graph.nodes[name] = replace(node, sources=known, sources_valid=len(known) == len(node.sources))
            continue
        others = [other for other in existing if other != name]
        for source in node.sources:
            if source.name not in existing and source.name not in REQUIRED:  # missing required ones are reported apart
                hint = suggestion(source.name, others, otherwise=f": choose from {', '.join(others)}")
                graph.problems.add(f"{name}.sources", f"no component '{source.name}'{hint}")
        corrected = [s if s.name in existing else replace(s, name=nearest(s.name, others) or "") for s in node.sources]
        sources = tuple(source for source in corrected if source.name)
        valid = node.sources_valid and len(sources) == len(corrected)
        graph.nodes[name] = replace(node, sources=sources, sources_valid=valid)


def _check_roles(graph: Graph) -> None:
    for name in REQUIRED:
        if name not in graph.nodes:
            graph.problems.add("", f"{name} is missing ({ROLES[name]}): add a component of this name")
    for name, expected in ROLE_CLASSES.items():
        kind = graph.nodes[name].kind if name in graph.nodes else ""
        if kind and not issubclass(COMPONENTS[kind], expected):
            graph.problems.add(f"{name}.kind", f"{kind}, but this name is for {ROLES[name]}: rename the {kind}")


def _sort(graph: Graph) -> None:
    """Topological order: each node after its sources."""
    pending, ordered = graph.nodes, dict[str, Node]()
    while pending:
        ready = next((n for n, node in pending.items() if not any(s.name in pending for s in node.sources)), None)
        if ready is None and graph.problems.too_many_for_hints:
            ordered |= pending
            break
        if ready is None:
            _break_cycle(pending, graph.problems)
        else:
            ordered[ready] = pending.pop(ready)
    graph.nodes = ordered


def _break_cycle(pending: dict[str, Node], problems: Problems) -> None:
    """Report one cycle and cut it. Every pending node has a pending source, so following sources must close one."""
    path = [next(iter(pending))]
    while (source := next(s.name for s in pending[path[-1]].sources if s.name in pending)) not in path:
        path.append(source)
    cycle = path[path.index(source) :]
    flow = " → ".join([*reversed(cycle), cycle[-1]])
    problems.add("", f"{flow} is a cycle: remove one of these sources; only a core such as lstm reads earlier steps")
    last = pending[cycle[-1]]
    sources = tuple(s for s in last.sources if s.name != source)
    pending[last.name] = replace(last, sources=sources, sources_valid=False)


def _check_source_counts(graph: Graph) -> None:
    """Check nodes whose sources exist in every environment. `make_plan` checks the others, for one environment."""
    conditional: set[str] = set()  # nodes that only some environments have
    for name, node in graph.nodes.items():
        conditional_sources = [source for source in node.sources if source.name in conditional]
        if node.conditions or (node.sources and len(conditional_sources) == len(node.sources)):
            conditional.add(name)
        if not conditional_sources:
            check_source_count(node, graph.problems)


def _check_unused(graph: Graph) -> None:
    """Report each node that nothing reads, together with the nodes that lead only to it."""
    used = ancestors(graph.nodes, OUTPUTS)
    unused = {name: node for name, node in graph.nodes.items() if name not in used}
    read = {source.name for node in unused.values() for source in node.sources}
    for name in [name for name in unused if name not in read]:
        upstream = ancestors(unused, [name]) - {name}
        others = [other for other in unused if other in upstream]
        also = f", so {', '.join(others)} {'are' if len(others) > 1 else 'is'} unused too" if others else ""
        graph.problems.add(name, f"unused: nothing reads it{also}: make it a source, or remove it")
