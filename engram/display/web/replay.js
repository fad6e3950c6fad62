"use strict";
// The replay page: playback, keyboard and pointer, and everything that belongs to the step under the cursor.

const SPEEDS = [1, 2, 5, 10, 20, 50];
const SMALL = 0.2; // a change of the action below this is hardly one
const MOST_ACTIONS = 12;
const HINT = "Point at the map to read a unit.";
const $ = (id) => document.getElementById(id);

readData().then(start).catch((error) => {
  $("title").textContent = "This page cannot be shown";
  $("facts").textContent = `${error}. It needs a browser of 2023 or later.`;
  throw error;
});

function start(facts) {
  prepareFacts(facts);
  const state = { facts, step: 0, agent: 0, playing: false, speed: 5, matrixKind: "erased" };
  const world = makeWorld(facts, $("world"), $("legend"));
  const memory = makeStill($("memory"), drawMemory);
  const curves = makeStill($("curves"), drawCurves);
  let matrixShape = null;

  function show() {
    const inventory = world.draw(state.step, state.agent);
    memory.cursor(state);
    curves.cursor(state);
    drawPast($("past"), state);
    matrixShape = drawMatrix($("matrix"), state);
    showStep(state, inventory);
  }
  function redraw() {
    memory.redraw(state);
    curves.redraw(state);
    show();
  }
  function go(step) {
    state.step = Math.max(0, Math.min(facts.count - 1, step));
    show();
  }
  function setAgent(agent) {
    state.agent = (agent + facts.agents) % facts.agents;
    $("agent").value = String(state.agent);
    showVerdict(state, go);
    redraw();
  }
  const player = makePlayer(state, go);
  fillPage(state);
  setUpControls(state, player, go, setAgent, show);
  setUpPointer(state, player, go, () => matrixShape);
  showVerdict(state, go);
  setUpTheme($("theme"), redraw);
  let resizing = 0;
  new ResizeObserver(() => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(redraw);
  }).observe($("right"));
  document.body.dataset.ready = "true";
}

// Adds what the charts ask for: episodes of each agent, changes by group, and the use of memory at each step.
function prepareFacts(facts) {
  const { count, agents, group, arrays } = facts;
  const groups = arrays.erased.shape[2];
  facts.startsOf = Array.from({ length: agents }, (_, agent) =>
    [...Array(count).keys()].filter((step) => facts.memory ? arrays.starts.data[step * agents + agent] : facts.episodeStarts.includes(step)));
  const starts = Array.from({ length: agents }, () => new Int32Array(count));
  for (let agent = 0; agent < agents; agent++) {
    for (let step = 1; step < count; step++) {
      const begins = arrays.starts.data[step * agents + agent];
      starts[agent][step] = begins ? step : starts[agent][step - 1];
    }
  }
  facts.startOf = (agent, step) => starts[agent][step];
  facts.endOf = (agent, step) => {
    let end = step + 1;
    while (end < count && starts[agent][end] === starts[agent][step]) end++;
    return end;
  };
  facts.change = (kind, agent, step, g) => arrays[kind].data[(agent * count + step) * groups + g] / 255;
  const use = new Float32Array(count * agents);
  for (let agent = 0; agent < agents; agent++) {
    for (let step = 0; step < count; step++) {
      const ended = Math.floor((step - starts[agent][step]) / group);
      for (let g = 0; g < ended; g++) {
        use[step * agents + agent] = Math.max(use[step * agents + agent], facts.change("erased", agent, step, g));
      }
    }
  }
  arrays.use = { data: use, shape: [count, agents] };
}

function makePlayer(state, go) {
  let timer = 0;
  const button = $("play");
  function set(playing) {
    state.playing = playing;
    button.textContent = playing ? "⏸ Pause" : "▶ Play";
    button.setAttribute("aria-label", playing ? "Pause" : "Play");
    clearTimeout(timer);
    if (playing) {
      if (state.step === state.facts.count - 1) go(0);
      timer = setTimeout(tick, 1000 / state.speed);
    }
  }
  function tick() {
    go(state.step + 1);
    if (state.step === state.facts.count - 1) set(false);
    else timer = setTimeout(tick, 1000 / state.speed);
  }
  return { set, toggle: () => set(!state.playing) };
}

function fillPage({ facts, speed }) {
  document.title = `Replay of ${facts.run}`;
  $("title").textContent = `${facts.run} on ${facts.env}`;
  $("facts").textContent = [
    `policy ${facts.policy}`, `after ${facts.steps.toLocaleString("en")} steps (epoch ${facts.epoch})`,
    facts.greedy ? "most likely actions" : "sampled actions", `seed ${facts.seed}`,
    facts.memory ? "" : "without memory",
  ].filter(Boolean).join(" · ");
  $("notes").textContent = facts.notes.join(" ");
  $("scrub").max = String(facts.count - 1);
  for (const choice of SPEEDS) $("speed").append(new Option(`${choice} steps/s`, String(choice)));
  $("speed").value = String(speed);
  for (let agent = 0; agent < facts.agents; agent++) $("agent").append(new Option(facts.agentNames[agent], String(agent)));
  $("agent-label").hidden = facts.agents === 1;
  $("action-caption").textContent = facts.actions === "continuous"
    ? "Mean and standard deviation of each number; the mark is the action taken."
    : "Probability of each action; the one taken is highlighted.";
  $("memory-text").textContent = HINT;
  const { units, allUnits } = facts;
  $("memory-caption").textContent = units.length < allUnits
    ? `The ${units.length} of ${allUnits} units that vary most.` : `All ${allUnits} units.`;
}

function setUpControls(state, player, go, setAgent, show) {
  const { facts } = state;
  const stepTo = (step) => { player.set(false); go(step); };
  $("first").addEventListener("click", () => stepTo(0));
  $("back").addEventListener("click", () => stepTo(state.step - 1));
  $("forward").addEventListener("click", () => stepTo(state.step + 1));
  $("last").addEventListener("click", () => stepTo(facts.count - 1));
  $("play").addEventListener("click", player.toggle);
  $("scrub").addEventListener("input", (event) => stepTo(Number(event.target.value)));
  const setSpeed = (speed) => { state.speed = speed; $("speed").value = String(speed); };
  $("speed").addEventListener("change", (event) => setSpeed(Number(event.target.value)));
  $("agent").addEventListener("change", (event) => setAgent(Number(event.target.value)));
  $("matrix-kind").addEventListener("change", (event) => { state.matrixKind = event.target.value; show(); });
  const faster = (by) => setSpeed(SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, SPEEDS.indexOf(state.speed) + by))]);
  const keys = {
    " ": player.toggle,
    ArrowLeft: (event) => stepTo(state.step - (event.shiftKey ? 10 : 1)),
    ArrowRight: (event) => stepTo(state.step + (event.shiftKey ? 10 : 1)),
    Home: () => stepTo(0), End: () => stepTo(facts.count - 1),
    ArrowUp: () => setAgent(state.agent - 1), ArrowDown: () => setAgent(state.agent + 1),
    "+": () => faster(1), "=": () => faster(1), "-": () => faster(-1), t: () => $("theme").click(),
  };
  document.addEventListener("keydown", (event) => {
    const inSelect = event.target instanceof HTMLSelectElement;
    const pressesButton = event.target instanceof HTMLButtonElement && event.key === " " && event.target.id !== "play";
    if (inSelect || pressesButton || event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    if (facts.agents === 1 && event.key.startsWith("Arrow") && "UpDown".includes(event.key.slice(5))) return;
    event.preventDefault();
    keys[event.key](event);
  });
}

function setUpPointer(state, player, go, matrixShape) {
  const drag = (canvas, stepAt) => {
    const move = (event) => {
      const box = canvas.getBoundingClientRect();
      player.set(false);
      go(stepAt(event.clientX - box.left, event.clientY - box.top, box.width));
    };
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); move(event); });
    canvas.addEventListener("pointermove", (event) => { if (event.buttons) move(event); });
  };
  for (const id of ["past", "memory", "curves"]) {
    drag($(id), (x, _, width) => timeScale(width, state.facts.count).stepAt(x));
  }
  drag($("matrix"), (_, y) => {
    const { start, count, tall } = matrixShape();
    return start + Math.max(0, Math.min(count - 1, Math.floor((y / tall) * count)));
  });
  $("memory").addEventListener("pointermove", (event) => showUnit(state, event));
  $("memory").addEventListener("pointerleave", () => { $("memory-text").textContent = HINT; });
}

function showUnit({ facts, agent }, event) {
  const box = $("memory").getBoundingClientRect();
  const [, units, count] = facts.arrays.memory.shape;
  const unit = Math.floor(((event.clientY - box.top) / (box.height - AXIS)) * units);
  if (unit < 0 || unit >= units) return;
  const step = timeScale(box.width, count).stepAt(event.clientX - box.left);
  const share = facts.arrays.memory.data[(agent * units + unit) * count + step] / 127;
  $("memory-text").textContent = `${facts.units[unit]} at step ${step}: ${percent(share)} of its largest value`;
}

function showStep(state, inventory) {
  const { facts, step, agent } = state;
  const at = step * facts.agents + agent;
  const { values, entropies, rewards, alive } = facts.arrays;
  const begin = facts.startOf(agent, step);
  const episode = facts.episodeStarts.filter((first) => first <= step).length;
  $("scrub").value = String(step);
  $("scrub").setAttribute("aria-valuetext", `step ${step}`);
  $("where").textContent = `Step ${step} of ${facts.count - 1}`
    + (facts.episodeStarts.length > 1 ? ` · episode ${episode}, its step ${step - facts.episodeStarts[episode - 1]}` : "")
    + (alive.data[at] ? "" : " · this agent is absent");
  $("inventory").textContent = inventory === null ? ""
    : `carries ${Object.entries(inventory).map(([name, count]) => `${count} ${name}`).join(", ") || "nothing"}`;
  $("value").textContent = number(values.data[at]);
  $("entropy").textContent = number(entropies.data[at]);
  $("reward").textContent = number(rewards.data[at]);
  let sum = 0;
  for (let earlier = facts.episodeStarts[episode - 1]; earlier <= step; earlier++) sum += rewards.data[earlier * facts.agents + agent];
  $("return").textContent = number(sum);
  showActions(facts, at);
  showPast(facts, agent, step, begin);
}

function showActions(facts, at) {
  const { distributions, taken } = facts.arrays;
  const wide = distributions.shape[2], each = taken.shape[2];
  const chosen = taken.data.subarray(at * each, (at + 1) * each);
  const row = distributions.data.subarray(at * wide, (at + 1) * wide);
  if (facts.actions === "continuous") return showContinuous(facts, row, chosen);
  let shown = [...facts.names.keys()];
  if (shown.length > MOST_ACTIONS) {
    const likely = shown.filter((index) => !chosen.includes(index)).sort((a, b) => row[b] - row[a]);
    shown = [...chosen, ...likely].slice(0, MOST_ACTIONS).sort((a, b) => row[b] - row[a]);
  }
  $("actions").replaceChildren(...shown.map((index) => {
    const bar = element("i");
    bar.style.width = `${100 * row[index]}%`;
    return element("div", { className: chosen.includes(index) ? "action taken" : "action" },
      element("span", { className: "name", textContent: facts.names[index].replaceAll("_", " "), title: facts.names[index] }),
      element("span", { className: "bar" }, bar),
      element("span", { className: "share", textContent: percent(row[index]) }));
  }), ...furtherActions(facts));
}

function furtherActions(facts) {
  const further = facts.names.length - MOST_ACTIONS;
  return further > 0 ? [element("div", { className: "soft", textContent: `and ${further} more` })] : [];
}

function showContinuous(facts, row, chosen) {
  const numbers = chosen.length;
  $("actions").replaceChildren(...facts.names.slice(0, MOST_ACTIONS).map((name, i) => {
    const [mean, deviation] = [row[i], row[numbers + i]];
    const reach = Math.max(1, Math.abs(mean) + 2 * deviation, Math.abs(chosen[i]));
    const place = (value) => `${50 + (50 * value) / reach}%`;
    const bar = element("i"), mark = element("b");
    bar.style.left = place(mean - deviation);
    bar.style.width = `${(100 * deviation) / reach}%`;
    mark.style.left = place(chosen[i]);
    return element("div", { className: "action" },
      element("span", { className: "name", textContent: `${name} ${number(mean)} ± ${number(deviation)}` }),
      element("span", { className: "bar" }, bar, mark),
      element("span", { className: "share", textContent: number(chosen[i]) }));
  }), ...furtherActions(facts));
}

// The earliest past that an action depends on: the first step, or group of steps, whose loss with all before it changes
// the action by more than a little. Null if even empty memory hardly changes it.
function reach(facts, agent, step) {
  const begin = facts.startOf(agent, step);
  const groups = Math.floor((step - begin) / facts.group);
  for (let g = 0; g < groups; g++) {
    const change = facts.change("erased", agent, step, g);
    const last = begin + (g + 1) * facts.group - 1;
    if (change >= SMALL) return { last, back: step - last, change };
  }
  return null;
}

function ago(back) {
  return `${back} step${back === 1 ? "" : "s"} before`;
}

function showPast(facts, agent, step, begin) {
  if (step - begin < facts.group) {
    $("past-text").textContent = step === begin ? "There is no past yet: memory is empty before this step."
      : `The past is left out in groups of ${facts.group} steps; the first of this episode ends at step ${begin + facts.group - 1}.`;
    return;
  }
  const use = facts.arrays.use.data[step * facts.agents + agent];
  const found = reach(facts, agent, step);
  $("past-text").textContent = found === null
    ? `This action hardly depends on the past: leaving it out would change it by ${use < 0.005 ? "less than 1%" : `at most ${percent(use)}`}.`
    : `This action depends on what was seen up to step ${found.last}, ${ago(found.back)}: without that it would change by ${percent(found.change)}.`;
}

// One moment for each episode: the action that depends on the most distant past, or else the most on any.
function moments(facts, agent) {
  const found = [];
  for (let first = 0; first < facts.count; first = facts.endOf(agent, first)) {
    let best = null;
    for (let step = first; step < facts.endOf(agent, first); step++) {
      const past = reach(facts, agent, step);
      const better = best === null || (past !== null && (past.back > best.back || (past.back === best.back && past.change > best.change)));
      if (past !== null && better) best = { step, ...past };
    }
    if (best !== null) found.push(best);
  }
  return found.sort((a, b) => b.back - a.back || b.change - a.change);
}

const MOST_MOMENTS = 10;

function showVerdict({ facts, agent }, go) {
  const found = moments(facts, agent);
  const who = facts.agents > 1 ? facts.agentNames[agent] : "this agent";
  const Who = who[0].toUpperCase() + who.slice(1);
  if (!found.length) {
    let most = 0;
    for (let step = 0; step < facts.count; step++) most = Math.max(most, facts.arrays.use.data[step * facts.agents + agent]);
    $("verdict").textContent = `Hardly. Leaving out the past would change no action of ${who} by ${most < 0.005 ? "even 1%" : `more than ${percent(most)}`}.`;
  } else {
    const { step, last, back, change } = found[0];
    $("verdict").textContent = `Yes. ${Who} remembers at least ${back} step${back === 1 ? "" : "s"}: without what it saw up to step ${last}, `
      + `its action at step ${step} would change by ${percent(change)}. `
      + (found.length > 1 ? `The longest memory in each episode${found.length > MOST_MOMENTS ? `, the first ${MOST_MOMENTS} of ${found.length}` : ""}:` : "");
  }
  $("moments").replaceChildren(...found.slice(0, MOST_MOMENTS).map(({ step, last, back, change }) => element("button", {
    type: "button", textContent: `step ${step} ← ${last} (${back} back): ${percent(change)}`, onclick: () => go(step),
    title: `The action of step ${step} would change by ${percent(change)} without what was seen up to step ${last}`,
  })));
}
