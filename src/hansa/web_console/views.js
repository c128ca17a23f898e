// One function per view: state in, elements out.

import { bytes, count, element, milliseconds, rate, sparkline, table } from "./format.js";
import { draw, layout } from "./graph.js";

export function nameOf(overview, id) {
  const node = overview.nodes.find((each) => each.id === id);
  return (node && node.name) || id;
}

let cached = { key: "", places: new Map() };

export function graphView(state, choose) {
  const { overview, chosen } = state;
  const key = JSON.stringify([overview.nodes.map((n) => n.id), overview.links.map((l) => [l.a, l.b])]);
  if (cached.key !== key) cached = { key, places: layout(overview.nodes, overview.links, cached.places) };
  return [element("div", { className: "columns" },
    draw(overview, cached.places, chosen || overview.node, choose),
    nodePanel(state, chosen || overview.node))];
}

function nodePanel({ overview, rates }, id) {
  const node = overview.nodes.find((each) => each.id === id);
  if (!node) return element("div", { className: "panel" }, "This node is not known any more.");
  const links = overview.links.filter((link) => link.a === id || link.b === id);
  const rows = links.map((link) => {
    const other = link.a === id ? link.b : link.a;
    const text = link.two_way ? milliseconds(link.rtt_ms) : "one side only";
    return [nameOf(overview, other), text];
  });
  const traffic = rates.get(id);
  return element("div", { className: "panel" },
    element("h2", {}, node.name || node.id, id === overview.node ? " (this agent)" : ""),
    element("p", { className: node.reachable ? "good" : "bad" }, node.reachable ? "reachable" : "unreachable"),
    element("p", { className: "soft" }, "id ", element("code", {}, node.id)),
    element("p", { className: "soft" }, node.addresses.length ? `at ${node.addresses.join(", ")}` : "no address announced"),
    traffic ? element("p", {}, `to it ${rate(traffic.out)}, from it ${rate(traffic.in)}`) : "",
    table([["linked to", false], ["round trip", true]], rows, "No links."));
}

export function linksView({ overview, rates, history }) {
  const rows = Object.entries(overview.neighbours).map(([id, link]) => {
    const now = rates.get(id) || {};
    return [
      nameOf(overview, id), milliseconds(link.rtt_ms), rate(now.out), rate(now.in),
      sparkline((history.get(id) || []).map((each) => each.out + each.in)),
      bytes(link.bytes_out), bytes(link.bytes_in), bytes(link.outstanding_bytes), count(link.dropped),
    ];
  });
  return [
    element("h2", {}, "Links of this agent"),
    table([["neighbour", false], ["round trip", true], ["out", true], ["in", true], ["last two minutes", false],
      ["sent", true], ["received", true], ["in flight", true], ["publications dropped", true]],
      rows, "This agent has no neighbours. Check [link] neighbours and the log."),
  ];
}

export function topicsView(state, search, refresh) {
  const { overview, status } = state;
  const box = element("input", { type: "search", value: state.search, placeholder: "part of a filter",
    "aria-label": "Search filters" });
  box.addEventListener("input", () => search(box.value));
  const again = element("button", { type: "button" }, "Refresh");
  again.addEventListener("click", refresh);
  const head = element("p", {}, box, " ", again);
  if (!status) return [head, element("p", { className: "soft" }, "loading")];
  const byFilter = new Map();
  const note = (filter, node) => byFilter.set(filter, (byFilter.get(filter) || new Set()).add(node));
  status.interest.local.forEach((filter) => note(filter, overview.node));
  Object.entries(status.interest.remote).forEach(([node, filters]) =>
    filters.forEach((filter) => note(filter, node)));
  const found = [...byFilter].filter(([filter]) => filter.includes(state.search)).sort();
  const rows = found.slice(0, 500).map(([filter, nodes]) => {
    const group = status.groups[filter];
    return [element("code", {}, filter), [...nodes].map((id) => nameOf(overview, id)).join(", "),
      group && group.core ? nameOf(overview, group.core) : "–"];
  });
  const installed = overview.interest.installed;
  return [
    head,
    element("p", { className: installed ? "good" : "warn" }, installed
      ? "The interest of this agent is installed at every reachable node."
      : "Some reachable nodes have not confirmed the interest of this agent yet."),
    overview.interest.wide.length ? element("p", { className: "warn" },
      "Not every subscription here is known, so this agent also asks for ", overview.interest.wide.join(", "), ".") : "",
    table([["filter", false], ["subscribed at", false], ["core", false]], rows, "No filter matches."),
    found.length > rows.length ? element("p", { className: "soft" },
      `${count(found.length - rows.length)} more; search to narrow the list.`) : "",
  ];
}

export function deliveryView({ overview }) {
  const { delivery } = overview;
  if (!delivery) return [element("p", { className: "soft" }, "This agent has no journal.")];
  const pending = Object.entries(delivery.pending || {}).map(([id, item]) =>
    [nameOf(overview, id), element("code", {}, JSON.stringify(item))]);
  const gaps = (delivery.gaps || []).map((gap) => [element("code", {}, JSON.stringify(gap))]);
  const facts = Object.entries(delivery).filter(([, value]) => typeof value !== "object")
    .map(([name, value]) => [name.replaceAll("_", " "), name.endsWith("bytes") ? bytes(value) : String(value)]);
  return [
    element("h2", {}, "Publications that receivers have not acknowledged"),
    table([["receiver", false], ["positions", false]], pending, "None."),
    element("h2", {}, "Gaps"),
    table([["publications that could not be delivered", false]], gaps, "None."),
    element("h2", {}, "Journal and inbox"),
    table([["", false], ["", true]], facts, "–"),
  ];
}

export function alarmsView({ overview, alarmHistory }) {
  const now = Object.entries(overview.alarms).map(([name, text]) => [element("b", { className: "bad" }, name), text]);
  const before = alarmHistory.map((each) =>
    [each.time.toLocaleTimeString(), each.active ? "raised" : "cleared", each.name, each.text]);
  return [
    element("h2", {}, "Active"),
    table([["alarm", false], ["meaning", false]], now, "No alarm is active."),
    element("h2", {}, "Since this page was opened"),
    table([["time", false], ["", false], ["alarm", false], ["meaning", false]], before, "No changes."),
  ];
}

export function countersView({ overview, counterRates }) {
  const rows = Object.entries(overview.counters).sort().map(([name, value]) =>
    [name, count(value), rate(counterRates.get(name), count)]);
  const sizes = Object.entries(overview.sizes).sort().map(([name, value]) => [name.replaceAll("_", " "), count(value)]);
  return [
    element("h2", {}, "Events since the start"),
    table([["event", false], ["count", true], ["now", true]], rows, "Nothing was counted yet."),
    element("h2", {}, "Sizes of bounded state"),
    table([["", false], ["entries", true]], sizes, "–"),
  ];
}
