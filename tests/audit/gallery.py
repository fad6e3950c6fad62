"""Measures the audit on all designs: how many wrong ones it names, and how many right ones it clears.

python tests/audit/gallery.py [--full] [NAME ...]

At the sizes that each fault needs, or with --full at those of a run.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from audit.test_designs import FULL, MORE_WRONG, RIGHT, SMALL, WRONG, audit


def main(names: list[str], full: bool) -> None:
    wrong = [case for case in [*WRONG, *MORE_WRONG] if not names or case.policy.__name__ in names]
    right = [policy for policy in RIGHT if not names or policy.__name__ in names]
    caught = named = rooted = cleared = 0
    for case in wrong:
        report = audit(case.policy, FULL if full else case.sizes)
        expected = [result for result in report.failures if result.name == case.root and case.finding in result.finding]
        roots = [cause.root.name for cause in report.causes]
        caught, named, rooted = caught + bool(roots), named + bool(expected), rooted + (roots[:1] == [case.root])
        print(f"{case.policy.__name__}: {', '.join(roots) or 'passes'}", flush=True)
    for policy in right:
        report = audit(policy, FULL if full else SMALL)
        cleared += report.passed
        print(f"{policy.__name__}: {', '.join(result.name for result in report.failures) or 'passes'}", flush=True)
    print(
        f"wrong: {caught} of {len(wrong)} caught, {named} by the check that names the fault, {rooted} with the right "
        f"root; right: {cleared} of {len(right)} pass"
    )


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if name != "--full"], "--full" in sys.argv)
