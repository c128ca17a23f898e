// Topics as a tree: filters with their subscribers, and the rates of topics while they are watched.

import { count, element, rate, soft } from "./format.js";
import { nameOf, state } from "./model.js";

const CHILDREN = 200;

function makeTree() {
  const { overview, status, topics } = state;
  const root = { children: new Map(), nodes: new Set(), captured: 0, injected: 0, filters: 0 };
  const add = (path, visit) => {
    let at = root;
    visit(at, false);
    for (const [index, name] of path.entries()) {
      if (!at.children.has(name)) at.children.set(name, { name, children: new Map(), nodes: new Set(), captured: 0, injected: 0, filters: 0 });
      at = at.children.get(name);
      visit(at, index === path.length - 1);
    }
  };
  const addFilter = (filter, node) => add(filter.split("/"), (at, isEnd) => {
    at.filters += 1;
    if (isEnd) at.nodes.add(node);
  });
  status.interest.local.forEach((filter) => addFilter(filter, overview.node));
  Object.entries(status.interest.remote).forEach(([node, filters]) => {
    if (node !== overview.node) filters.forEach((filter) => addFilter(filter, node));
  });
  for (const [topic, [captured, injected]] of Object.entries(topics ? topics.counts : {})) {
    add(topic ? topic.split("/") : ["(other topics)"], (at) => {
      at.captured += captured / topics.seconds;
      at.injected += injected / topics.seconds;
    });
  }
  return root;
}

function subscribers(nodes) {
  const { overview, status } = state;
  return [...nodes].map((id) => {
    const isHere = id === overview.node;
    const isInForce = isHere ? overview.interest.installed : id in status.interest.in_force;
    const why = isHere ? "installed at every reachable node" : "in force here";
    return element("span", { className: isInForce ? "good" : "warn", title: isInForce ? why : `not ${why} yet` },
      `${nameOf(id)}${isInForce ? "" : " (not yet)"} `);
  });
}

function rowsOf(at, path, depth, toggle) {
  const children = [...at.children.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  const rows = children.slice(0, CHILDREN).flatMap((child) => {
    const own = [...path, child.name], full = own.join("/"), isOpen = state.openTopics.has(full) || Boolean(state.search);
    const label = child.name === "" ? "(empty)" : child.name;
    const name = child.children.size
      ? element("button", { type: "button", className: "tree", "aria-expanded": String(isOpen), onclick: () => toggle(full) },
        `${isOpen ? "▾" : "▸"} ${label}`)
      : element("span", { className: "tree" }, label);
    const row = element("tr", {},
      element("td", { className: `depth depth-${Math.min(depth, 9)}` }, name),
      element("td", { className: "number" }, child.captured ? rate(child.captured, count) : ""),
      element("td", { className: "number" }, child.injected ? rate(child.injected, count) : ""),
      element("td", { className: "number" }, child.filters ? count(child.filters) : ""),
      element("td", {}, ...subscribers(child.nodes)));
    return [row, ...(isOpen ? rowsOf(child, own, depth + 1, toggle) : [])];
  });
  if (children.length > CHILDREN) {
    rows.push(element("tr", {}, element("td", { colSpan: 5, className: `soft depth-${Math.min(depth, 9)}` },
      `${count(children.length - CHILDREN)} more; search to narrow the list`)));
  }
  return rows;
}

function matching(at, text, path = []) {
  for (const [name, child] of at.children) {
    const full = [...path, name];
    if (full.join("/").includes(text)) continue;
    matching(child, text, full);
    if (!child.children.size) at.children.delete(name);
  }
}

export function topicsView({ search, toggle, refresh }) {
  const { overview, status, topics } = state;
  const head = element("p", { className: "row" },
    element("input", { type: "search", value: state.search, placeholder: "part of a topic or filter", "aria-label": "Search topics",
      oninput: (event) => search(event.target.value) }), " ",
    element("button", { type: "button", onclick: refresh }, "Refresh filters"));
  if (!status) return [head, soft("loading")];
  const tree = makeTree();
  if (state.search) matching(tree, state.search);
  const { interest } = overview, missing = interest.not_installed_at.map(nameOf);
  const columns = ["topic or filter", "captured here", "injected here", "filters", "subscribers"];
  return [head,
    element("p", { className: interest.installed ? "good" : "warn" }, interest.installed
      ? "The interest of this agent is installed at every reachable node."
      : `The interest of this agent is not installed yet at ${missing.join(", ") || "some nodes"}.`),
    interest.wide.length ? element("p", { className: "warn" },
      "Not every subscription here is known, so this agent also asks for ", interest.wide.join(", "), ".") : "",
    topics && topics.topics > Object.keys(topics.counts).length
      ? soft(`Rates of the ${count(Object.keys(topics.counts).length)} busiest of ${count(topics.topics)} topics.`) : "",
    tree.children.size ? element("div", { className: "scroll", tabIndex: 0 }, element("table", { className: "topics" },
      element("thead", {}, element("tr", {}, ...columns.map((text, at) =>
        element("th", { scope: "col", className: at > 0 && at < 4 ? "number" : "" }, text)))),
      element("tbody", {}, ...rowsOf(tree, [], 0, toggle)))) : soft("No filter and no topic matches."),
    soft("Rates are those of this agent's broker; they are counted only while this view is open."),
  ];
}
