// Follows the documents of the chosen view and redraws it. A hidden page follows nothing.

import { element, show } from "./format.js";
import { noteFederation, noteHistory, noteOverview, state } from "./model.js";
import { proposalsView } from "./proposals.js";
import { follow } from "./stream.js";
import { stopTail, tailView } from "./tail.js";
import { topicsView } from "./topics.js";
import {
  alarmsView, countersView, deliveryView, graphView, linksView, nodesView, retainedView, timelineView, traceView,
} from "./views.js";

const RETRY_MS = 1000;

// Title, documents besides the overview, and the function that draws.
const VIEWS = {
  graph: ["Graph", ["federation"], () => graphView(chooseNode)],
  nodes: ["Nodes", ["federation"], nodesView],
  links: ["Links", ["federation", "history"], linksView],
  topics: ["Topics", ["topics"], () => topicsView({ search, toggle: toggleTopic, refresh: loadStatus })],
  trace: ["Trace", [], () => traceView(openTrace, { ask: askReal, publish: publishReal })],
  messages: ["Messages", [], () => tailView(render)],
  delivery: ["Delivery", ["federation"], deliveryView],
  retained: ["Retained", [], () => retainedView(loadRetained)],
  alarms: ["Alarms", ["federation", "history"], alarmsView],
  timeline: ["Time line", ["history"], () => timelineView(chooseKind)],
  proposals: ["Proposals", [], () => proposalsView({ load: loadProposals, choose: chooseProposal, apply: applyProposal })],
  counters: ["Counters", [], countersView],
};

const NOTE = {
  overview: noteOverview,
  federation: noteFederation,
  history: noteHistory,
  topics: (topics) => { state.topics = topics; },
};

// `#trace/NODE/plant%2Ftemp` names a view and its parameters.
function route() { return location.hash.slice(1).split("/"); }
function currentView() { return Object.hasOwn(VIEWS, route()[0]) ? route()[0] : "graph"; }

function chooseNode(id) { state.chosen = id; render(); }
function chooseKind(kind) { state.timelineKind = kind; render(); }
function search(text) { state.search = text; render(); }
function toggleTopic(path) {
  if (!state.openTopics.delete(path)) state.openTopics.add(path);
  render();
}

function openTrace(node, topic) {
  const target = `#trace/${encodeURIComponent(node)}/${encodeURIComponent(topic)}`;
  if (location.hash === target) loadTrace();
  else location.hash = target;
}

// ---------------------------------------------------------------- documents on request

async function fetchJson(path, options = {}) {
  const response = await fetch(path, { signal: AbortSignal.timeout(30000), ...options });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || `${path} answers ${response.status}`);
  return answer;
}

async function loadStatus() {
  try { state.status = await fetchJson("/status"); } catch (error) { showProblem(error); }
  render();
}

async function loadHistory() {
  const history = await fetchJson("/history").catch(() => null);
  if (history) noteHistory(history);
  render();
}

async function loadRetained() {
  state.retained = await fetchJson("/retained").catch((error) => ({ error: error.message }));
  render();
}

async function loadProposals() {
  const document = await fetchJson("/proposals").catch((error) => ({ error: error.message }));
  Object.assign(state.proposals, { document, chosen: null, problem: "" });
  render();
}

function chooseProposal(chosen) { Object.assign(state.proposals, { chosen, done: "", problem: "" }); render(); }

async function applyProposal({ kind, a, b, a_name: from, b_name: to }) {
  const { token } = state.proposals, headers = token ? { Authorization: `Bearer ${token}` } : {};
  try {
    await fetchJson(`/proposals/apply?${new URLSearchParams({ kind, a, b })}`, { method: "POST", headers });
    state.proposals.done = `${kind === "add" ? "Added" : "Removed"} the link ${from} – ${to}; the agents learn it from the manager.`;
    await loadProposals();
  } catch (error) { Object.assign(state.proposals, { chosen: null, problem: error.message }); render(); }
}

async function loadNode() {
  const [, id] = route();
  if (!id) return;
  const asked = state.node = { id };
  try { asked.answer = await fetchJson(`/nodes?${new URLSearchParams({ node: id })}`); } catch (error) { asked.error = error.message; }
  render();
}

async function loadTrace() {
  const [, node, topic] = route().map(decodeURIComponent);
  if (node || topic) state.draft = { topic: topic || "", node };
  state.trace = topic ? { answer: null } : null;
  Object.assign(state.real, { isAsked: false, answer: null, error: "" });
  render();
  if (!topic) return;
  const asked = state.trace;
  asked.answer = await fetchJson(`/trace?${new URLSearchParams({ topic, from: node })}`).catch((error) => ({ error: error.message }));
  render();
}

function askReal(isAsked) { Object.assign(state.real, { isAsked, error: "" }); render(); }

async function publishReal() {
  const { real } = state, [, node, topic] = route().map(decodeURIComponent), asked = state.trace;
  const headers = real.token ? { Authorization: `Bearer ${real.token}` } : {};
  Object.assign(real, { isAsked: false, isRunning: true, answer: null });
  render();
  try {
    const answer = await fetchJson(`/trace?${new URLSearchParams({ topic, from: node })}`, { method: "POST", headers });
    if (state.trace === asked) { asked.answer = answer; real.answer = answer.real; }
  } catch (error) { real.error = error.message; }
  real.isRunning = false;
  render();
}

const LOAD = { graph: loadHistory, topics: loadStatus, retained: loadRetained, proposals: loadProposals, nodes: loadNode, trace: () => { loadHistory(); loadTrace(); } };

// ---------------------------------------------------------------- the stream

let stream = null;

// One stream for all documents; it is opened again when the view needs others.
async function followStream() {
  const documents = ["overview", ...VIEWS[currentView()][1]].join(",");
  if (stream && stream.documents === documents) return;
  stopStream();
  const mine = { documents, controller: new AbortController() };
  stream = mine;
  const onEvent = (name, data) => {
    if (stream !== mine) return;
    const isFirst = !state.overview;
    NOTE[name](data);
    if (isFirst && state.history) noteHistory(state.history);
    showProblem(null);
    renderSoon();
  };
  try {
    await follow(`/stream?documents=${documents}`, { signal: mine.controller.signal, onEvent });
    throw new Error("it closed the connection");
  } catch (error) {
    if (stream !== mine) return;
    showProblem(error);
    setTimeout(() => { if (stream === mine) { stream = null; followStream(); } }, RETRY_MS);
  }
}

function stopStream() {
  const former = stream;
  stream = null;
  if (former) former.controller.abort();
}

// ---------------------------------------------------------------- drawing

function showProblem(error) {
  const problem = document.getElementById("problem");
  problem.hidden = !error;
  problem.textContent = error ? `The agent does not answer: ${error.message}. Trying again.` : "";
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
  show(document.getElementById("tabs"), Object.entries(VIEWS).map(([name, [title]]) =>
    element("a", { href: `#${name}`, ...(name === current ? { "aria-current": "page" } : {}) }, title)));
  document.querySelector("nav [aria-current]").scrollIntoView({ block: "nearest", inline: "nearest" });
}

function render() {
  if (!state.overview) return;
  renderHead();
  show(document.getElementById("view"), VIEWS[currentView()][2]());
}

let isDue = false;

// Documents that arrive together are drawn once.
function renderSoon() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => { isDue = false; render(); });
}

function showView() {
  renderTabs();
  show(document.getElementById("view"), []);
  if (currentView() !== "messages") stopTail();
  followStream();
  render();
  if (LOAD[currentView()]) LOAD[currentView()]();
}

document.getElementById("skip").onclick = (event) => {
  event.preventDefault();
  document.getElementById("view").focus();
};
addEventListener("hashchange", showView);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stopStream();
  else followStream();
});
showView();
