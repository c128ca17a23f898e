// One function per view: what the page knows in, elements out. They are patched into the page.

import { bytes, clockTime, count, element, heading, link, milliseconds, rate, soft, sparkline, svg, table } from "./format.js";
import { drawGraph } from "./graph.js";
import { realTraceParts } from "./real_trace.js";
import { allLinks, byName, events, linkRate, nameOf, state, stateOf, summaryOf } from "./model.js";

const ROWS = 300;

// ---------------------------------------------------------------- graph

function graphOf(choose, path = []) {
  const { overview } = state;
  const nodes = overview.nodes.map((node) => {
    const [text, kind] = stateOf(node);
    return { id: node.id, name: node.name || node.id.slice(0, 8), text,
      kind: `${kind === "good" ? "" : kind} ${node.id === overview.node ? "self" : ""}` };
  });
  const links = allLinks().map((each) => {
    const own = each.a === overview.node || each.b === overview.node;
    const kind = each.lost ? "lost" : each.two_way ? (own ? "own" : "") : "lost";
    const names = `${nameOf(each.a)} – ${nameOf(each.b)}`;
    const text = each.lost ? "lost" : each.two_way ? `round trip ${milliseconds(each.rtt_ms)}` : "reported by one side only";
    return { ...each, kind, text: `${names}: ${text}`, bytes: each.lost ? null : linkRate(each.a, each.b) };
  });
  return drawGraph({ nodes, links, path, chosen: state.chosen || overview.node, onChoose: choose,
    onLink: (a, b) => { location.hash = `links/${a}/${b}`; } });
}

export function graphView(choose) {
  const { overview } = state, id = state.chosen || overview.node;
  const lost = allLinks().filter((each) => each.lost || !each.two_way);
  const away = overview.nodes.filter((node) => !node.reachable);
  const faults = [
    ...away.map((node) => element("li", {}, `${node.name || node.id} is unreachable`)),
    ...lost.map((each) => element("li", {}, link(`#links/${each.a}/${each.b}`, `${nameOf(each.a)} – ${nameOf(each.b)}`),
      each.since ? ` is down since ${clockTime(each.since).slice(0, 8)}` : " is down")),
  ];
  return [element("div", { className: "columns" },
    graphOf(choose),
    element("div", {},
      element("div", { className: "panel", id: "faults", role: "status" }, heading("Faults now"),
        faults.length ? element("ul", { className: "bad" }, ...faults) : soft("None: every known node is reachable.")),
      nodePanel(id)))];
}

function nodePanel(id) {
  const node = state.overview.nodes.find((each) => each.id === id);
  if (!node) return element("div", { className: "panel" }, "This node is not known any more.");
  const [text, kind] = stateOf(node), summary = summaryOf(id), rates = state.nodeRates.get(id) || {};
  const rows = allLinks().filter((each) => each.a === id || each.b === id).map((each) => {
    const other = each.a === id ? each.b : each.a;
    const isUp = !each.lost && each.two_way;
    return [link(`#links/${id}/${other}`, nameOf(other)), isUp ? milliseconds(each.rtt_ms) : element("b", { className: "bad" }, "down"),
      isUp ? rate(linkRate(id, other)) : ""];
  });
  return element("div", { className: "panel" },
    heading(`${node.name || node.id}${id === state.overview.node ? " (this agent)" : ""}`),
    element("p", { className: kind }, text),
    summary ? element("p", {}, `captured ${rate(rates.captured, count)}, injected ${rate(rates.injected, count)}`) : "",
    ...Object.entries(summary ? summary.alarms : {}).map(([name, why]) => element("p", { className: "warn" }, `${name}: ${why}`)),
    soft("id ", element("code", {}, node.id)),
    soft(node.addresses.length ? `at ${node.addresses.join(", ")}` : "no address announced"),
    table([["linked to", false], ["round trip", true], ["traffic", true]], rows, "No links."),
    element("p", {}, link(`#nodes/${id}`, "all about this node")));
}

// ---------------------------------------------------------------- nodes

export function nodesView() {
  const { federation, nodeRates, overview } = state;
  const [, id] = location.hash.slice(1).split("/");
  if (id) return nodeView(id);
  if (!federation) return [soft("asking all nodes")];
  const rows = overview.nodes.map((node) => {
    const [text, kind] = stateOf(node), summary = node.reachable ? summaryOf(node.id) : null, rates = nodeRates.get(node.id) || {};
    const cells = summary ? [
      summary.version, count(Object.keys(summary.neighbours).length), count(summary.interest.filters),
      rate(rates.captured, count), rate(rates.injected, count), count(sum(Object.values(summary.delivery.pending))),
      Object.entries(summary.alarms).map(([name, why]) => `${name}: ${why}`).join("; "),
    ] : ["", "", "", "", "", "", ""];
    return [link(`#nodes/${node.id}`, node.name || node.id), element("b", { className: kind }, text), ...cells];
  });
  return [heading("All nodes"),
    table([["node", false], ["state", false], ["version", false], ["links", true], ["filters", true],
      ["captured", true], ["injected", true], ["pending", true], ["alarms", false]], rows, "No nodes.")];
}

const sum = (values) => values.reduce((total, each) => total + each, 0);

function nodeView(id) {
  const { node } = state;
  const back = element("p", {}, link("#nodes", "all nodes"), " · ", link(`#trace/${id}/`, "trace a topic from here"));
  if (!node || node.id !== id || (!node.answer && !node.error)) return [back, heading(nameOf(id)), soft("asking the node")];
  if (node.error) return [back, heading(nameOf(id)), element("p", { className: "bad" }, node.error)];
  const { answer } = node;
  const facts = [["version", answer.version], ["broker", `${answer.broker.address}, ${answer.broker.connected ? "connected" : answer.broker.problem}`],
    ["observer", answer.broker.observer_complete ? "knows every subscription" : answer.broker.observer_problem],
    ["interest", answer.interest.installed ? "installed at every reachable node" : "not installed everywhere"],
    ["certificate", answer.security ? `of ${answer.security.federation}, valid until ${String(answer.security.valid_until).slice(0, 10)}, roles ${answer.security.roles.join(", ")}` : "none"],
    ["disk", answer.disk.free_bytes === undefined ? "–" : `${bytes(answer.disk.free_bytes)} free`]];
  const neighbours = Object.entries(answer.neighbours).sort(([a], [b]) => byName.compare(nameOf(a), nameOf(b)));
  const links = neighbours.map(([other, each]) => [link(`#links/${id}/${other}`, nameOf(other)),
    milliseconds(each.rtt_ms), bytes(each.bytes_out), bytes(each.bytes_in), count(each.dropped)]);
  return [back, heading(answer.name),
    ...Object.entries(answer.alarms).map(([name, why]) => element("p", { className: "warn" }, `${name}: ${why}`)),
    ...(answer.refused || []).map((why) => element("p", { className: "warn" }, `link refused: ${why}`)),
    ...Object.entries(answer.not_reached || {}).map(([address, why]) => element("p", { className: "warn" }, `neighbour ${address} not reached: ${why}`)),
    table([["", false], ["", false]], facts, "–"),
    heading("Links"), table([["neighbour", false], ["round trip", true], ["sent", true], ["received", true], ["dropped", true]], links, "No links."),
    heading(`Filters of clients (${count(answer.interest.filters)})`),
    table([["filter", false]], answer.local_filters.slice(0, ROWS).map((each) => [element("code", {}, each)]), "No client subscribes."),
    ...counterTables(answer.counters, new Map())];
}

// ---------------------------------------------------------------- links

export function linksView() {
  const [, a, b] = location.hash.slice(1).split("/");
  if (a && b) return linkView(a, b);
  const rows = allLinks().map((each) => {
    const isUp = !each.lost && each.two_way;
    const samples = state.linkSamples.get(`${each.a} ${each.b}`) || [], back = state.linkSamples.get(`${each.b} ${each.a}`) || [];
    const ends = [(summaryOf(each.a) || { neighbours: {} }).neighbours[each.b], (summaryOf(each.b) || { neighbours: {} }).neighbours[each.a]];
    return [element("span", { className: "name" }, link(`#links/${each.a}/${each.b}`, `${nameOf(each.a)} – ${nameOf(each.b)}`)),
      element("b", { className: isUp ? "good" : "bad" }, isUp ? "up" : each.lost ? "down" : "one side only"),
      isUp ? milliseconds(each.rtt_ms) : "", isUp ? rate(linkRate(each.a, each.b)) : "",
      sparkline(samples.map((value, at) => value + (back[at] || 0)), "traffic of the last minutes"),
      count(sum(ends.map((end) => (end ? end.dropped : 0))))];
  });
  return [heading("All links"),
    table([["link", false], ["state", false], ["round trip", true], ["traffic", true], ["last minutes", false], ["dropped", true]],
      rows, "There are no links. Check [link] neighbours and the log."),
    ...topologyFacts(state.overview.topology)];
}

// Links beyond the configured ones: those of the manager, and those that the agent dialled to heal.
function topologyFacts({ manager, problem, assigned, self_dialled: dialled, healed_count: healed }) {
  if (!manager && !dialled.length && !healed) return [];
  const listing = (ids) => ids.map(nameOf).join(", ") || "none";
  const facts = [["manager", manager ? `${manager}, ${problem || "in contact"}` : "none"], ["neighbours assigned by the manager", listing(assigned)],
    ["neighbours dialled to heal the topology", listing(dialled)], ["links dialled to heal since the start", count(healed)]];
  return [heading("Topology of this agent"), table([["", false], ["", false]], facts, "–")];
}

function linkView(a, b) {
  const found = allLinks().find((each) => (each.a === a && each.b === b) || (each.a === b && each.b === a));
  const isUp = found && !found.lost && found.two_way;
  const direction = (from, to) => {
    const end = (summaryOf(from) || { neighbours: {} }).neighbours[to];
    if (!end) return [`${nameOf(from)} → ${nameOf(to)}`, "–", "", "", "", "", "no answer, or no link at this end"];
    const reasons = Object.entries(end.drop_reasons || {}).map(([why, times]) => `${why}: ${count(times)}`).join("; ");
    return [`${nameOf(from)} → ${nameOf(to)}`, rate(state.linkRates.get(`${from} ${to}`)),
      sparkline(state.linkSamples.get(`${from} ${to}`) || [], "traffic of the last minutes"), bytes(end.bytes_out),
      bytes(end.outstanding_bytes), count(end.dropped), reasons || "none dropped"];
  };
  const past = events().filter((event) => event.kind.startsWith("link ") &&
    ((event.at === a && event.node === b) || (event.at === b && event.node === a)));
  return [element("p", {}, link("#links", "all links")), heading(`${nameOf(a)} – ${nameOf(b)}`),
    element("p", { className: isUp ? "good" : "bad" }, isUp ? `up, round trip ${milliseconds(found.rtt_ms)}` : "down"),
    table([["direction", false], ["traffic", true], ["last minutes", false], ["sent", true], ["in flight", true],
      ["publications dropped", true], ["why", false]], [direction(a, b), direction(b, a)], "–"),
    heading("History"), eventTable(past, "No change since its agents started, as far as they remember.")];
}

// ---------------------------------------------------------------- trace

export function traceView(open, real) {
  const { overview, trace, draft } = state;
  const topic = element("input", { type: "search", value: draft.topic, required: true,
    placeholder: "a topic, such as plant/temp", "aria-label": "Topic", oninput: (event) => { draft.topic = event.target.value; } });
  const node = element("select", { "aria-label": "Published at", oninput: (event) => { draft.node = event.target.value; } },
    ...overview.nodes.map((each) =>
      element("option", { value: each.id, selected: each.id === (draft.node || overview.node) }, each.name || each.id)));
  const form = element("form", { className: "row", onsubmit: (event) => {
    event.preventDefault();
    if (draft.topic) open(draft.node || overview.node, draft.topic);
  } }, topic, " at ", node, " ", element("button", { type: "submit" }, "Trace"));
  if (!trace) return [form, soft("A dry run: each node on the path says what it would do. Nothing is published.")];
  const { answer } = trace;
  if (!answer) return [form, soft("asking the nodes on the path")];
  if (answer.error) return [form, element("p", { className: "bad" }, answer.error)];
  const rows = answer.hops.map((hop) => [
    count(hop.hop), element("b", { className: hop.delivered ? "good" : hop.duplicate ? "soft" : "" }, hop.name),
    hop.from_name === null ? "published" : `from ${hop.from_name}`,
    element("div", {}, ...hop.reasons.map((reason) => element("div", {}, reason))),
  ]);
  const names = answer.delivered.map((each) => each.name).join(", ");
  const path = answer.hops.filter((hop) => hop.from !== null).map((hop) =>
    ({ from: hop.from, to: hop.node, kind: hop.duplicate ? "duplicate" : hop.delivered ? "delivered" : "" }));
  return [form,
    element("p", { className: names ? "good" : "warn" }, names ? `Delivered at ${names}.` : "Delivered at no other broker."),
    ...answer.missed.map((each) => element("p", { className: "bad" },
      `Not at ${each.name}, which subscribes to ${each.filters.join(", ")}: ${each.reason}.`)),
    graphOf((id) => { location.hash = `nodes/${id}`; }, path),
    table([["hop", true], ["node", false], ["copy", false], ["decision", false]], rows, "No hops."),
    ...realTraceParts(answer.topic, real)];
}

// ---------------------------------------------------------------- delivery

export function deliveryView() {
  const { overview, federation } = state;
  if (!federation) return [soft("asking all nodes")];
  const known = federation.nodes.filter((node) => node.summary);
  const pending = known.flatMap(({ id, summary }) => Object.entries(summary.delivery.pending).map(([receiver, behind]) =>
    [nameOf(id), nameOf(receiver), count(behind)])).filter((row) => row[2] !== "0");
  const inboxes = known.filter(({ summary }) => summary.delivery.inbox || summary.delivery.inbox_waiting).map(({ id, summary }) =>
    [nameOf(id), count(summary.delivery.inbox), bytes(summary.delivery.inbox_bytes), count(summary.delivery.inbox_waiting)]);
  const gaps = known.flatMap(({ id, summary }) => summary.delivery.gaps.map((gap) =>
    [gap.time, nameOf(id), nameOf(gap.origin), `${count(gap.first)} to ${count(gap.last)}`, gap.reason]));
  const silent = federation.nodes.filter((node) => !node.summary).map((node) => node.name || node.id);
  const facts = Object.entries(overview.delivery).filter(([, value]) => typeof value !== "object")
    .map(([name, value]) => [name.replaceAll("_", " "), name.endsWith("bytes") ? bytes(value) : count(value)]);
  return [
    silent.length ? element("p", { className: "warn" }, `No answer from ${silent.join(", ")}.`) : "",
    heading("Publications that receivers have not acknowledged"),
    table([["journal of", false], ["receiver", false], ["positions behind", true]], pending.slice(0, ROWS), "None: no receiver is behind."),
    heading("Publications that brokers have not taken yet"),
    table([["inbox of", false], ["publications", true], ["size", true], ["waiting for room", true]], inboxes.slice(0, ROWS), "None."),
    heading("Gaps: publications that will never arrive"),
    table([["time", false], ["receiver", false], ["origin", false], ["positions", false], ["reason", false]],
      gaps.sort().reverse().slice(0, ROWS), "None."),
    heading("Journal and inbox of this agent"), table([["", false], ["", true]], facts, "–"),
  ];
}

export function retainedView(compare) {
  const { retained } = state;
  const button = element("button", { type: "button", onclick: compare }, "Compare again");
  if (!retained) return [soft("asking all nodes")];
  if (retained.error) return [element("p", {}, button), element("p", { className: "bad" }, retained.error)];
  const rows = retained.differing.flatMap(({ topic, nodes }) => {
    const newest = Object.values(nodes).map((each) => BigInt(each.version)).reduce((a, b) => (a > b ? a : b));
    return Object.entries(nodes).map(([id, value], at) => [at ? "" : element("code", {}, topic), nameOf(id),
      BigInt(value.version) === newest ? "newest" : element("b", { className: "bad" }, "older"),
      value.digest ? element("code", {}, value.digest) : "deleted", nameOf(value.owner)]);
  });
  const problems = Object.entries(retained.problems).map(([id, why]) => element("p", { className: "warn" }, `${nameOf(id)}: ${why}`));
  return [
    element("p", {}, button, ` ${count(retained.topics)} topics compared, ${count(retained.differing_count)} with different values.`),
    ...problems,
    retained.is_complete ? "" : element("p", { className: "warn" }, "Only the first 1,000 topics of each node were compared."),
    table([["topic", false], ["node", false], ["version", false], ["digest of the value", false], ["written at", false]],
      rows.slice(0, ROWS), "All nodes agree about all values."),
    soft("A value on its way differs for a moment. A difference that stays after comparing again is a fault."),
  ];
}

// ---------------------------------------------------------------- alarms and time line

export function alarmsView() {
  const { overview, federation } = state;
  const nodes = federation ? federation.nodes : [{ id: overview.node, summary: overview }];
  const active = nodes.flatMap(({ id, summary }) => Object.entries(summary ? summary.alarms : {}).map(([name, why]) =>
    [nameOf(id), element("b", { className: "bad" }, name), why]));
  const lost = overview.nodes.filter((node) => !node.reachable).map(({ id }) =>
    [nameOf(id), element("b", { className: "bad" }, "unreachable"), "this agent has no path to it"]);
  const past = events().filter((event) => event.kind.startsWith("alarm "));
  return [heading("Active"),
    table([["node", false], ["alarm", false], ["meaning", false]], [...lost, ...active], "No alarm is active."),
    heading("Before"), eventTable(past, "No alarm since the agents started, as far as they remember.")];
}

const KINDS = {
  all: ["everything", () => true],
  links: ["links and nodes", (kind) => /^(link|links|node|broker) /.test(kind)],
  elections: ["elections", (kind) => kind.startsWith("core ")],
  alarms: ["alarms", (kind) => kind.startsWith("alarm ")],
  delivery: ["delivery", (kind) => /^(gap|repaired|delivery)/.test(kind)],
};

function colourOf(kind) {
  if (/down|unreachable|lost|gap|abandoned|raised|refused/.test(kind)) return "bad";
  return /up|reachable|connected|cleared|repaired/.test(kind) ? "good" : "warn";
}

// One row for an event that several agents noticed within two seconds.
function merged(found) {
  const rows = [];
  for (const event of found) {
    const key = [event.kind, event.node, event.subject, event.text].join("\n");
    const same = rows.find((row) => row.key === key && row.at_ms - event.at_ms < 2000);
    if (same) same.places.push(event.atName);
    else if (rows.length < ROWS) rows.push({ ...event, key, places: [event.atName] });
  }
  return rows;
}

function listed(places) {
  const sorted = [...places].sort();
  return sorted.length > 6 ? `${sorted.slice(0, 5).join(", ")} and ${count(sorted.length - 5)} more` : sorted.join(", ");
}

function eventTable(found, empty) {
  return table([["time", false], ["event", false], ["about", false], ["seen at", false], ["reason", false]], merged(found).map((event) =>
    [element("span", { className: "time" }, clockTime(event.at_ms)), element("b", { className: colourOf(event.kind) }, event.kind),
      [event.name || event.node, event.subject].filter(Boolean).join(", "), element("span", { className: "name" }, listed(event.places)), element("span", { className: "reason" }, event.text)]), empty);
}

export function timelineView(choose) {
  if (!state.history) return [soft("asking all nodes")];
  const select = element("select", { "aria-label": "Kind of events", oninput: (event) => choose(event.target.value) },
    ...Object.entries(KINDS).map(([name, [text]]) => element("option", { value: name, selected: name === state.timelineKind }, text)));
  const found = events().filter((event) => KINDS[state.timelineKind][1](event.kind));
  const silent = state.history.nodes.filter((node) => node.problem).map((node) => `${node.name}: ${node.problem}`);
  return [element("p", { className: "row" }, "Show ", select, ` – ${count(found.length)} events that the agents remember, the newest first`),
    silent.length ? element("p", { className: "warn" }, `No answer from ${silent.join("; ")}`) : "",
    lanes(found), eventTable(found, "No events.")];
}

// The last ten minutes: one lane per node, one mark per event.
function lanes(found) {
  const span = 600, now = Date.now(), lane = 18, width = Math.max(320, Math.min(1000, document.getElementById("view").clientWidth - 24));
  const isNarrow = width < 600, left = isNarrow ? 70 : 110;
  const nodes = [...new Map(found.map((event) => [event.at, event.atName]))]
    .sort((a, b) => byName.compare(a[1], b[1])).slice(0, 24);
  const shown = found.filter((event) => now - event.at_ms < span * 1000);
  if (!shown.length) return soft("Nothing happened in the last ten minutes.");
  const x = (atMs) => Math.round(width - 10 - ((now - atMs) / 1000 / span) * (width - left - 20));
  const rows = nodes.flatMap(([id, name], at) => {
    const label = svg("text", { x: 0, y: at * lane + 13 }, name.slice(0, isNarrow ? 9 : 16));
    const marks = shown.filter((event) => event.at === id).map((event) =>
      svg("circle", { cx: x(event.at_ms), cy: at * lane + 9, r: 4, class: colourOf(event.kind) },
        svg("title", {}, `${clockTime(event.at_ms)} ${event.kind} ${event.name || event.subject} ${event.text}`)));
    return [svg("line", { x1: left, y1: at * lane + 9, x2: width, y2: at * lane + 9 }), label, ...marks];
  });
  return element("figure", { className: "lanes" },
    svg("svg", { viewBox: `0 0 ${width} ${nodes.length * lane + 4}`, role: "img", "aria-label": "Events of the last ten minutes, one line per node" }, ...rows),
    element("figcaption", { className: "soft" }, "The last ten minutes; now is at the right."));
}

// ---------------------------------------------------------------- counters

function counterTables(counters, rates) {
  const rows = Object.entries(counters).sort().map(([name, value]) => [name, count(value), rate(rates.get(name), count)]);
  return [heading("Events since the start"), table([["event", false], ["count", true], ["now", true]], rows, "Nothing was counted yet.")];
}

export function countersView() {
  const sizes = Object.entries(state.overview.sizes).sort().map(([name, value]) => [name.replaceAll("_", " "), count(value)]);
  return [...counterTables(state.overview.counters, state.counterRates),
    heading("Sizes of bounded state"), table([["", false], ["entries", true]], sizes, "–")];
}
