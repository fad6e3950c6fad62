"""`engram report RUN … [runs_dir=runs] [--out FILE]`: one page of charts about one or several runs."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from engram.cli.arguments import ArgumentParser, add_page_options, page_path
from engram.cli.run_arguments import named_runs
from engram.settings import UserError
from engram.stored.files import check_writable

DESCRIPTION = """Writes one self-contained HTML page about runs: learning curves, losses, gradient and memory health,
throughput, settings that differ, evaluation, episode statistics and the diagnosis. Runs that differ by their seed only
are one curve with a band. Code named in a run's settings is never imported."""

EXAMPLES = """examples:
  engram report run=fast_tmaze --open
  engram report small large runs_dir=runs --out comparison.html
  engram report 'fast_tmaze_seed-*' --png charts"""


def main(argv: Sequence[str]) -> int:
    usage = "engram report RUN … [runs_dir=runs] [--out FILE] [--open] [--png FOLDER]"
    parser = ArgumentParser(prog="engram report", usage=usage, description=DESCRIPTION, epilog=EXAMPLES)
    add_page_options(parser, "report.html in the directory of the first run")
    parser.add_argument(
        "--png", type=Path, metavar="FOLDER", help="also write the charts as PNG, for papers (needs the extra `plot`)"
    )
    options, arguments = parser.parse_settings(argv)
    directories = named_runs("report", arguments)
    out = page_path(options.out, directories[0], "report.html")
    check_writable(out, "--out")
    if options.png:
        check_writable(options.png / "chart.png", "--png")
    from engram.runs.report import label, read_report, write_report

    report = read_report(directories)
    if not report.charts:
        names = ", ".join(run.name for run in report.runs)
        raise UserError(f"report: {names}: no metrics yet: try again after its first epoch")
    size = write_report(report, out)
    print(f"report: {out} ({size / 1e6:.1f} MB)")
    if options.png:
        from engram.display.report import write_pngs

        for path in write_pngs(report.charts, [label(group) for group in report.groups], options.png):
            print(f"chart: {path}")
    if options.open:
        webbrowser.open(out.resolve().as_uri())
    return 0
