"""The graph of a YAML policy: its components in an order in which each comes after its sources, and every mistake.

Nothing here imports torch, so that a file is checked before anything is built.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from engram.agent.components.component import Component, read_component
from engram.agent.components.head_kinds import ActionEmbedding, Recurrent
from engram.agent.components.kind import Kind
from engram.agent.components.kinds import KINDS
from engram.agent.components.problems import Problems
from engram.nearest import nearest, suggestion

OBSERVATION = "_obs_"
OUTPUTS = ("_action_", "_value_")
REQUIRED = ("_core_", *OUTPUTS)
ROLES = {  # names with a meaning -> what they are for
    "_core_": "the memory, of the kind lstm, gru or mingru",
    "_action_embeds_": "the embedding of actions, of the kind action_embedding",
    "_action_": "the logits, of the kind actor or big_actor, or a linear of size: actions",
    "_value_": "the value, a linear of size: 1",
}
KIND_OF_ROLE: dict[str, type[Kind]] = {"_core_": Recurrent, "_action_embeds_": ActionEmbedding}

NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass
class Graph:
    components: dict[str, Component] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)


def read_graph(data: object) -> Graph:
    """The graph of name -> {kind, sources, for, and the kind's options}."""
    graph = Graph()
    if not isinstance(data, Mapping):
        graph.problems.note("", f"a {type(data).__name__}, where names of components and their options should be")
        return graph
    for given, content in data.items():
        name = _read_name(str(given), {str(key) for key in data}, graph.problems)
        if name is not None:
            graph.components[name] = read_component(name, content, graph.problems)
    _check_sources(graph)
    _check_roles(graph)
    _check_use(graph)
    _sort(graph)
    _check_counts(graph)
    return graph


def check_count(component: Component, problems: Problems) -> bool:
    """Whether a component has a number of sources that its kind can take."""
    if component.options is None or not component.sound:
        return False
    least, most = component.options.sources
    count = len(component.sources)
    if least <= count and (most is None or count <= most):
        return True
    number = "no" if most == 0 else f"at least {least}" if most is None else f"{least}" if least == most else "1 or 2"
    takes = f"{number} source{'' if number.endswith('1') else 's'}"
    got = f"{count} ({', '.join(map(str, component.sources))})" if count else "none"
    too_many = "leave them out" if most == 0 else "merge them first, with a concat"
    fix = "name what it reads" if count < least else too_many
    problems.note(f"{component.name}.sources", f"{component.kind} takes {takes}, got {got}: {fix}")
    return False


def ancestors(components: Mapping[str, Component], names: Iterable[str]) -> set[str]:
    """These components and all that leads to them."""
    found: set[str] = set()
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name in components and name not in found:
            found.add(name)
            waiting.extend(source.name for source in components[name].sources)
    return found


def _read_name(name: str, given: set[str], problems: Problems) -> str | None:
    if name == OBSERVATION:
        problems.note(name, "the observation, which is always there: give the component another name")
        return None
    if not NAME.fullmatch(name):
        problems.note(name, "no name for a component: letters, digits and underscores, beginning with a letter")
        return None
    if name.startswith("_") and name not in ROLES:
        free = [role for role in ROLES if role not in given]
        hint = suggestion(name, free, otherwise=": give it another name")
        problems.note(name, f"only {', '.join(ROLES)} begin with an underscore{hint}")
        return nearest(name, free) or name
    return name


def _check_sources(graph: Graph) -> None:
    """A source that is not there gives way to the nearest that is."""
    there = [OBSERVATION, *graph.components]
    for name, component in graph.components.items():
        others = [other for other in there if other != name]
        for source in component.sources:
            if source.name not in there and source.name not in REQUIRED:  # missing ones are noted themselves
                known = suggestion(source.name, others, otherwise=f": there are {', '.join(others)}")
                graph.problems.note(f"{name}.sources", f"there is no component '{source.name}'{known}")
        meant = [s if s.name in there else replace(s, name=nearest(s.name, others) or "") for s in component.sources]
        sources = tuple(source for source in meant if source.name)
        sound = component.sound and len(sources) == len(meant)
        graph.components[name] = replace(component, sources=sources, sound=sound)


def _check_roles(graph: Graph) -> None:
    for name in REQUIRED:
        if name not in graph.components:
            graph.problems.note("", f"there is no {name} ({ROLES[name]}): add a component of this name")
    for name, expected in KIND_OF_ROLE.items():
        kind = graph.components[name].kind if name in graph.components else ""
        if kind and not issubclass(KINDS[kind], expected):
            graph.problems.note(f"{name}.kind", f"{kind}, but this name is for {ROLES[name]}: give the {kind} another")


def _sort(graph: Graph) -> None:
    waiting, ordered = graph.components, dict[str, Component]()
    while waiting:
        ready = [name for name, component in waiting.items() if not any(s.name in waiting for s in component.sources)]
        if not ready:
            _cut_a_loop(waiting, graph.problems)
        for name in ready[:1]:
            ordered[name] = waiting.pop(name)
    graph.components = ordered


def _cut_a_loop(waiting: dict[str, Component], problems: Problems) -> None:
    """Every component that waits has a source that waits: from one to the next, a loop is bound to close."""
    path = [next(iter(waiting))]
    while (before := next(s.name for s in waiting[path[-1]].sources if s.name in waiting)) not in path:
        path.append(before)
    loop = path[path.index(before) :]
    flow = " → ".join([*reversed(loop), loop[-1]])
    problems.note("", f"{flow} is a loop: take one out of the next one's sources; only lstm, gru and mingru look back")
    last = waiting[loop[-1]]
    waiting[last.name] = replace(last, sources=tuple(s for s in last.sources if s.name != before), sound=False)


def _check_counts(graph: Graph) -> None:
    """Of sources that are there in every environment; the others are counted when it is known."""
    conditional: set[str] = set()
    for name, component in graph.components.items():
        some = [source for source in component.sources if source.name in conditional]
        if component.need is not None or (some and len(some) == len(component.sources)):
            conditional.add(name)
        if not some:
            check_count(component, graph.problems)


def _check_use(graph: Graph) -> None:
    """A component that nothing reads is named together with all that leads only there."""
    used = ancestors(graph.components, OUTPUTS)
    unused = {name: component for name, component in graph.components.items() if name not in used}
    read = {source.name for component in unused.values() for source in component.sources}
    for name in [name for name in unused if name not in read]:
        others = [other for other in unused if other in ancestors(unused, [name]) - {name}]
        also = f" (nor {', '.join(others)}, which lead only there)" if others else ""
        graph.problems.note(name, f"unused: nothing reads it{also}: make it a source, or remove it")
