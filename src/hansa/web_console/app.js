// Fetches, keeps a little history and redraws the view that is chosen.

import { element } from "./format.js";
import { alarmsView, countersView, deliveryView, graphView, linksView, topicsView } from "./views.js";

const POLL_MS = 1000, HISTORY = 120, ALARMS = 200;

const VIEWS = {
  graph: ["Graph", () => graphView(state, choose)],
  links: ["Links", () => linksView(state)],
  topics: ["Topics", () => topicsView(state, search, loadStatus)],
  delivery: ["Delivery", () => deliveryView(state)],
  alarms: ["Alarms", () => alarmsView(state)],
  counters: ["Counters", () => countersView(state)],
};

const state = {
  overview: null, status: null, chosen: null, search: "", time: 0,
  rates: new Map(), history: new Map(), counterRates: new Map(), alarmHistory: [],
};

function currentView() {
  const name = location.hash.slice(1);
  return Object.hasOwn(VIEWS, name) ? name : "graph";
}

function choose(id) { state.chosen = id; render(); }
function search(text) { state.search = text; render(); }

async function fetchJson(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(10000) });
  if (!response.ok && response.status !== 503) throw new Error(`${path} answers ${response.status}`);
  return response.json();
}

async function loadStatus() {
  state.status = null;
  render();
  try { state.status = await fetchJson("/status"); } catch (error) { showProblem(error); }
  render();
}

function note(overview) {
  const time = performance.now(), before = state.overview, seconds = (time - state.time) / 1000;
  if (before && before.incarnation === overview.incarnation) {
    state.rates = new Map(Object.entries(overview.neighbours).map(([id, link]) => {
      const last = before.neighbours[id];
      const change = (field) => last ? Math.max(0, (link[field] - last[field]) / seconds) : 0;
      return [id, { out: change("bytes_out"), in: change("bytes_in") }];
    }));
    state.counterRates = new Map(Object.entries(overview.counters).map(([name, value]) =>
      [name, Math.max(0, (value - (before.counters[name] || 0)) / seconds)]));
  }
  for (const [id, now] of state.rates) {
    const past = state.history.get(id) || [];
    state.history.set(id, [...past, now].slice(-HISTORY));
  }
  if (before) {
    const change = (name, active, text) => state.alarmHistory.unshift({ time: new Date(), name, active, text });
    for (const [name, text] of Object.entries(overview.alarms)) if (!(name in before.alarms)) change(name, true, text);
    for (const [name, text] of Object.entries(before.alarms)) if (!(name in overview.alarms)) change(name, false, text);
    state.alarmHistory.length = Math.min(state.alarmHistory.length, ALARMS);
  }
  state.overview = overview;
  state.time = time;
}

function showProblem(error) {
  const place = document.getElementById("problem");
  place.hidden = !error;
  place.textContent = error ? `The agent does not answer: ${error.message}. Trying again.` : "";
}

function renderHead() {
  const { overview } = state;
  document.title = `${overview.name} – Hansa`;
  document.getElementById("title").textContent = overview.name;
  const pill = document.getElementById("state");
  const alarms = Object.keys(overview.alarms).length;
  const text = overview.problem || (alarms ? `${alarms} alarm${alarms > 1 ? "s" : ""}` : "ready");
  if (pill.textContent !== text) pill.textContent = text;
  pill.className = `pill ${overview.problem ? "bad" : alarms ? "warn" : "good"}`;
  const reachable = overview.nodes.filter((node) => node.reachable).length;
  document.getElementById("footer").textContent =
    `Hansa ${overview.version}, node ${overview.node}; broker ${overview.broker.address}, `
    + `${overview.broker.connected ? "connected" : "not connected"}; ${reachable} of ${overview.nodes.length} nodes reachable`;
}

function renderTabs() {
  const current = currentView();
  document.getElementById("tabs").replaceChildren(...Object.entries(VIEWS).map(([name, [title]]) => {
    const link = element("a", { href: `#${name}` }, title);
    if (name === current) link.setAttribute("aria-current", "page");
    return link;
  }));
}

// Redrawing would take the focus away: an element with the same place and kind gets it back.
function render() {
  if (!state.overview) return;
  renderHead();
  const view = document.getElementById("view");
  const focused = view.contains(document.activeElement) ? document.activeElement : null;
  const kind = focused ? focused.tagName : "";
  const place = focused ? [...view.querySelectorAll(kind)].indexOf(focused) : -1;
  const caret = focused && "selectionStart" in focused ? focused.selectionStart : null;
  view.replaceChildren(...VIEWS[currentView()][1]());
  const again = place >= 0 ? view.querySelectorAll(kind)[place] : null;
  if (again) {
    again.focus({ preventScroll: true });
    if (caret !== null) again.setSelectionRange(caret, caret);
  }
}

async function poll() {
  if (!document.hidden) {
    try {
      note(await fetchJson("/overview"));
      showProblem(null);
      render();
    } catch (error) {
      showProblem(error);
    }
  }
  setTimeout(poll, POLL_MS);
}

function showView() {
  renderTabs();
  if (currentView() === "topics" && !state.status) loadStatus();
  render();
}

addEventListener("hashchange", showView);
showView();
poll();
