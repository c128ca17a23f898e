// The graph: a layout by the distances between nodes, and its drawing. No library.

import { rate, svg } from "./format.js";

const ROUNDS = 40, ROUNDS_AFTER_CHANGE = 10, LABELS_MAX = 60, RATE_LABELS_MAX = 24;

// Drawing scales the places to the page.
let cached = { key: "", places: new Map() };

function placesOf(nodes, links) {
  const key = JSON.stringify([nodes.map((node) => node.id), links.map((link) => [link.a, link.b])]);
  if (cached.key !== key) cached = { key, places: layout(nodes, links, cached.places) };
  return cached.places;
}

// Hops between all nodes; parts without a link between them are put side by side.
function distances(nodes, links) {
  const index = new Map(nodes.map((node, at) => [node.id, at])), near = nodes.map(() => []);
  for (const { a, b } of links) {
    const i = index.get(a), j = index.get(b);
    if (i === undefined || j === undefined) continue;
    near[i].push(j); near[j].push(i);
  }
  const apart = 1 + Math.ceil(Math.sqrt(nodes.length));
  return nodes.map((_, start) => {
    const hops = nodes.map(() => apart), queue = [start], seen = new Set(queue);
    hops[start] = 0;
    for (const at of queue) {
      for (const next of near[at]) {
        if (!seen.has(next)) { seen.add(next); hops[next] = hops[at] + 1; queue.push(next); }
      }
    }
    return hops;
  });
}

// Stress layout by gradient descent (Zheng et al. 2018): drawn distances follow the hops. It starts
// from a circle, or from the former places, and always gives the same picture.
function layout(nodes, links, former) {
  const hops = distances(nodes, links), size = Math.max(1, ...hops.flat());
  const isNew = !nodes.some((node) => former.has(node.id));
  const places = nodes.map((node, at) => {
    const angle = (2 * Math.PI * at) / nodes.length - Math.PI / 2;
    return { ...(former.get(node.id) || { x: (size * Math.cos(angle)) / 2, y: (size * Math.sin(angle)) / 2 }) };
  });
  const pairs = nodes.flatMap((_, i) => nodes.slice(0, i).map((__, j) => [i, j]));
  let seed = 1;
  for (let at = pairs.length - 1; at > 0; at -= 1) {
    seed = (seed * 48271) % 2147483647;
    const other = seed % (at + 1);
    [pairs[at], pairs[other]] = [pairs[other], pairs[at]];
  }
  const rounds = isNew ? ROUNDS : ROUNDS_AFTER_CHANGE, largest = isNew ? size * size : 1;
  for (let round = 0; round < rounds; round += 1) {
    const step = largest * (0.05 / largest) ** (round / (rounds - 1));
    for (const [i, j] of pairs) {
      const dx = places[i].x - places[j].x, dy = places[i].y - places[j].y, far = Math.hypot(dx, dy) || 1e-6;
      const move = (Math.min(1, step / hops[i][j] ** 2) * (far - hops[i][j])) / 2 / far;
      places[i].x -= dx * move; places[i].y -= dy * move;
      places[j].x += dx * move; places[j].y += dy * move;
    }
  }
  return new Map(nodes.map((node, at) => [node.id, places[at]]));
}

function fitted(places) {
  const isNarrow = innerWidth < 800, width = isNarrow ? 480 : 1000, height = isNarrow ? 440 : 620;
  const xs = [...places.values()].map((p) => p.x), ys = [...places.values()].map((p) => p.y);
  const scale = (value, values, size, margin) => {
    const low = Math.min(...values), span = Math.max(...values) - low;
    return span < 1e-6 ? size / 2 : margin + ((value - low) / span) * (size - 2 * margin);
  };
  const at = new Map([...places].map(([id, p]) =>
    [id, { x: Math.round(scale(p.x, xs, width, 60)), y: Math.round(scale(p.y, ys, height, 44)) }]));
  return { width, height, at };
}

const title = (text) => svg("title", {}, text);

// `nodes` have id, name, kind ("", "self", "warn", "bad") and text; `links` have a, b, kind, text and
// perhaps bytes per second. `path` has the steps of a trace, each with from, to and kind.
export function drawGraph({ nodes, links, chosen, onChoose, onLink, path = [] }) {
  const { width, height, at } = fitted(placesOf(nodes, links));
  const hasLabels = nodes.length <= LABELS_MAX, radius = hasLabels ? 11 : 6;
  const hasRates = links.length <= RATE_LABELS_MAX;
  const lines = links.flatMap((each) => {
    const a = at.get(each.a), b = at.get(each.b);
    if (!a || !b) return [];
    const thickness = each.bytes > 0 ? Math.min(8, 1.5 + Math.log10(1 + each.bytes / 100)) : 1.5;
    const line = svg("line", { x1: a.x, y1: a.y, x2: b.x, y2: b.y, class: each.kind, "stroke-width": thickness.toFixed(1) });
    const area = svg("line", { x1: a.x, y1: a.y, x2: b.x, y2: b.y, class: "area", "data-link": `${each.a} ${each.b}`,
      onclick: () => onLink(each.a, each.b) }, title(each.text));
    if (!hasRates || !(each.bytes >= 1)) return [line, area];
    return [line, area, svg("text", { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 - 5, class: "rate" }, rate(each.bytes))];
  });
  const steps = path.flatMap((step) => {
    const a = at.get(step.from), b = at.get(step.to);
    if (!a || !b) return [];
    const far = Math.hypot(b.x - a.x, b.y - a.y) || 1, cut = (radius + 5) / far;
    return [svg("line", { x1: a.x, y1: a.y, x2: b.x - (b.x - a.x) * cut, y2: b.y - (b.y - a.y) * cut,
      class: `path ${step.kind}`, "marker-end": "url(#arrow)" })];
  });
  const circles = nodes.map((node) => {
    const place = at.get(node.id);
    const label = svg("text", { x: place.x, y: place.y + radius + 16 },
      hasLabels || node.id === chosen || node.kind.includes("bad") ? node.name : "");
    const choose = () => onChoose(node.id);
    return svg("g", {
      class: `${node.kind} ${node.id === chosen ? "chosen" : ""}`, tabindex: 0, role: "button",
      "aria-label": `${node.name}, ${node.text}`, onclick: choose,
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } },
    }, svg("circle", { cx: place.x, cy: place.y, r: radius }, title(`${node.name}: ${node.text}`)), label);
  });
  const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 5, refY: 4, markerWidth: 5, markerHeight: 5, orient: "auto" },
    svg("path", { d: "M0 0 L8 4 L0 8 z" }));
  return svg("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Nodes and links" },
    svg("defs", {}, arrow), ...lines, ...steps, ...circles);
}
