// What the page knows: the newest documents, rates from two of them, and what was lost.

const SAMPLES = 120, LOST_LINKS_KEPT_MS = 15 * 60 * 1000;

export const state = {
  overview: null, federation: null, history: null, topics: null, status: null,
  chosen: null, search: "", openTopics: new Set(), timelineKind: "all",
  trace: null, draft: { topic: "", node: "" }, node: null, retained: null,
  real: { isAsked: false, isRunning: false, token: "", answer: null, error: "" },
  proposals: { document: null, chosen: null, token: "", done: "", problem: "" },
  tail: { filter: "#", messages: 200, token: "", isOpen: false, problem: "", shown: [], count: 0 },
  counterRates: new Map(), nodeRates: new Map(), linkRates: new Map(), linkSamples: new Map(), lostLinks: new Map(),
};

export const byName = new Intl.Collator("en", { numeric: true });
const linkKey = (a, b) => (a < b ? `${a} ${b}` : `${b} ${a}`);

let names = new Map(), answers = new Map();

export function nameOf(id) { return names.get(id) || id; }

export function summaryOf(id) { return (answers.get(id) || {}).summary || null; }

function change(now, before, seconds) {
  return now === undefined || before === undefined || seconds <= 0 ? null : Math.max(0, (now - before) / seconds);
}

let base = { at: 0, incarnation: null, counters: {} };

export function noteOverview(overview) {
  const at = performance.now(), seconds = (at - base.at) / 1000;
  if (seconds > 0.9) {
    if (base.incarnation === overview.incarnation) {
      state.counterRates = new Map(Object.entries(overview.counters).map(([name, value]) =>
        [name, change(value, base.counters[name] || 0, seconds)]));
    }
    base = { at, incarnation: overview.incarnation, counters: overview.counters };
  }
  if (state.overview) noteLostLinks(state.overview.links, overview.links);
  state.overview = overview;
  names = new Map(overview.nodes.map((node) => [node.id, node.name]));
}

function noteLostLinks(before, links) {
  const now = new Set(links.filter((link) => !link.lost).map((link) => linkKey(link.a, link.b)));
  for (const { a, b, lost } of before) {
    const key = linkKey(a, b);
    if (!lost && !now.has(key)) state.lostLinks.set(key, { a, b, since: Date.now() });
  }
  for (const [key, { since }] of state.lostLinks) {
    if (now.has(key) || Date.now() - since > LOST_LINKS_KEPT_MS) state.lostLinks.delete(key);
  }
}

// Links that were lost before the page was opened, as their ends remember.
export function noteHistory(history) {
  state.history = history;
  if (!state.overview) return;
  const up = new Set(state.overview.links.filter((link) => !link.lost).map((link) => linkKey(link.a, link.b)));
  const seen = new Set();
  for (const event of events()) {
    const key = linkKey(event.at, event.node);
    if (!/^link (up|down)$/.test(event.kind) || seen.has(key)) continue;
    seen.add(key);
    const isLost = event.kind === "link down" && Date.now() - event.at_ms < LOST_LINKS_KEPT_MS;
    if (isLost && !up.has(key) && !state.lostLinks.has(key)) {
      state.lostLinks.set(key, { a: event.at, b: event.node, since: event.at_ms });
    }
  }
}

// All links with what is known of them: those that stand, and those that were lost.
export function allLinks() {
  const { overview, lostLinks } = state;
  const found = overview.links.map((link) => ({ ...link, since: (lostLinks.get(linkKey(link.a, link.b)) || {}).since }));
  const known = new Set(found.map((link) => linkKey(link.a, link.b)));
  const nodes = new Set(overview.nodes.map((node) => node.id));
  for (const [key, { a, b, since }] of lostLinks) {
    if (!known.has(key) && nodes.has(a) && nodes.has(b)) found.push({ a, b, rtt_ms: null, two_way: false, lost: true, since });
  }
  return found.map((each) => (nameOf(each.a) > nameOf(each.b) ? { ...each, a: each.b, b: each.a } : each))
    .sort((x, y) => byName.compare(nameOf(x.a), nameOf(y.a)) || byName.compare(nameOf(x.b), nameOf(y.b)));
}

export function noteFederation(federation) {
  for (const { id, summary } of federation.nodes) {
    const last = summaryOf(id);
    if (!summary || !last) { state.nodeRates.delete(id); continue; }
    const seconds = (summary.clock_ms - last.clock_ms) / 1000;
    if (seconds <= 0) continue;
    const of = (name) => change(summary.counters[name] || 0, last.counters[name] || 0, seconds);
    state.nodeRates.set(id, { captured: of("captured"), injected: of("injected") });
    for (const [other, traffic] of Object.entries(summary.neighbours)) {
      const previous = last.neighbours[other], key = `${id} ${other}`;
      const out = previous ? change(traffic.bytes_out, previous.bytes_out, seconds) : null;
      state.linkRates.set(key, out);
      state.linkSamples.set(key, [...(state.linkSamples.get(key) || []), out || 0].slice(-SAMPLES));
    }
  }
  state.federation = federation;
  answers = new Map(federation.nodes.map((node) => [node.id, node]));
}

// Bytes per second in both directions; null until known.
export function linkRate(a, b) {
  const out = state.linkRates.get(`${a} ${b}`), back = state.linkRates.get(`${b} ${a}`);
  return out === undefined && back === undefined ? null : (out || 0) + (back || 0);
}

// What a node looks like: [text, kind].
export function stateOf(node) {
  if (!node.reachable) return ["unreachable", "bad"];
  const found = answers.get(node.id);
  if (!found) return ["reachable", "good"];
  if (!found.summary) return [found.problem || "no answer", found.problem && found.problem.startsWith("refused") ? "warn" : "bad"];
  if (!found.summary.broker.connected) return ["no broker", "bad"];
  return Object.keys(found.summary.alarms).length ? ["alarm", "warn"] : ["up", "good"];
}

export function events() {
  if (!state.history) return [];
  return state.history.nodes.flatMap((node) => node.events.map((event) => ({ ...event, at: node.id, atName: node.name })))
    .sort((a, b) => b.at_ms - a.at_ms || b.number - a.number);
}
