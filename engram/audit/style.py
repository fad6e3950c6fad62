"""How the page looks: in light and dark, on wide and narrow screens."""

STYLE = """
:root { --ink: #1b2430; --soft: #5f6e80; --paper: #fbfcfd; --card: #ffffff; --panel: #f3f6f9; --line: #e1e7ee;
  --good: #0f7a56; --bad: #bf2c2c; --good-tint: #e3f4ec; --bad-tint: #fdecec; --calm: #cfe9dd; --accent: #3667ad;
  color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4eaf1; --soft: #95a3b5; --paper: #10151b; --card: #161d25;
  --panel: #1b232c; --line: #2a3541; --good: #4fcb9c; --bad: #ff7d74; --good-tint: #14312a; --bad-tint: #3a1d1f;
  --calm: #21483b; --accent: #82b3f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 36px 24px 72px; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header { margin-bottom: 20px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 20px; margin: 44px 0 6px; overflow-wrap: anywhere; }
p { margin: 4px 0; }
.soft { color: var(--soft); }
.verdict { display: inline-block; margin: 8px 0 6px; padding: 5px 14px; border-radius: 999px; font-weight: 650; }
.verdict.good { color: var(--good); background: var(--good-tint); }
.verdict.bad { color: var(--bad); background: var(--bad-tint); }
.number { font-family: ui-monospace, SFMono-Regular, Menlo, monospace; font-size: 13px; color: var(--soft);
  white-space: nowrap; }
.fail .number { color: var(--bad); }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(290px, 1fr)); gap: 14px;
  margin: 14px 0 22px; }
.body .pictures { grid-template-columns: repeat(auto-fit, minmax(240px, 330px)); margin: 10px 0 2px; }
figure { margin: 0; padding: 14px 16px 12px; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; display: flex; flex-direction: column; justify-content: space-between; gap: 8px; }
figure svg { width: 100%; height: auto; max-height: 190px; }
figcaption { font-size: 13px; line-height: 1.4; color: var(--soft); }
figcaption b { color: var(--ink); font-weight: 600; }
.checks { background: var(--card); border: 1px solid var(--line); border-radius: 12px; overflow: hidden; }
.check + .check { border-top: 1px solid var(--line); }
.check > summary { display: grid; grid-template-columns: 46px 166px 178px 1fr; gap: 14px; align-items: baseline;
  padding: 9px 18px; cursor: pointer; list-style: none; }
.check > summary::-webkit-details-marker { display: none; }
.check > summary:hover { background: var(--panel); }
.mark { font-size: 11.5px; font-weight: 700; text-transform: uppercase; letter-spacing: .05em; }
.pass .mark { color: var(--good); }
.fail .mark { color: var(--bad); }
.skip .mark, .skip .name { color: var(--soft); }
.name { font-weight: 600; }
.fail { box-shadow: inset 3px 0 var(--bad); }
.body { padding: 2px 18px 18px 78px; }
dl { display: grid; grid-template-columns: 58px 1fr; gap: 7px 16px; margin: 4px 0 8px; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
dd.fix { background: var(--good-tint); border-radius: 8px; padding: 6px 12px; margin: -2px 0 0 -12px; }
dd.where { font-family: ui-monospace, SFMono-Regular, Menlo, monospace; font-size: 13px; padding-top: 2px; }
dd ul { margin: 0; padding-left: 18px; }
svg text { font: 10px system-ui, sans-serif; fill: var(--soft); }
svg .within { fill: var(--calm); }
svg .beyond { fill: var(--bad); }
svg .bar { fill: var(--accent); }
svg .gone { fill: none; stroke: var(--bad); }
svg .axis { stroke: var(--line); }
svg .cut { stroke: var(--soft); }
svg .curve { fill: none; stroke: var(--accent); stroke-width: 1.8; stroke-linejoin: round; }
svg .start { stroke: var(--bad); stroke-dasharray: 3 3; }
@media (max-width: 760px) { body { padding: 22px 14px 48px; } h1 { font-size: 21px; }
  .check > summary { grid-template-columns: 42px 1fr auto; gap: 4px 10px; padding: 9px 14px; }
  .check > summary > .question { grid-column: 2 / -1; color: var(--soft); font-size: 14px; }
  .body { padding: 0 14px 14px; } dl { grid-template-columns: 1fr; gap: 0 0; } dt { margin-top: 6px; font-size: 13px; }
  dd.fix { margin-left: 0; } }
@media print { body { max-width: none; } .check { break-inside: avoid; } }
"""
