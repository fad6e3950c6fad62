"""The mistakes found in a graph, a line each."""


class Problems:
    """Lines in the order they were found, none of them twice."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, name: str, problem: str) -> None:
        """A problem of the component or option of this name; without a name, of all components together."""
        line = f"agent.components.{name}: {problem}" if name else f"agent.components: {problem}"
        if line not in self.lines:
            self.lines.append(line)
