// The graph of nodes and links. Positions come from a small force simulation that starts from a
// circle, so the same federation looks the same each time. After a change it continues from the
// former positions, with fewer steps.

import { svg } from "./format.js";

const WIDTH = 900, HEIGHT = 600, STEPS = 300, STEPS_AFTER_CHANGE = 60, PAIRS = 3e7;

export function layout(nodes, links, former) {
  const places = new Map(nodes.map((node, index) => {
    const angle = (2 * Math.PI * index) / nodes.length - Math.PI / 2;
    const old = former.get(node.id);
    return [node.id, old
      ? { x: (2 * old.x) / WIDTH - 1, y: (2 * old.y) / HEIGHT - 1 }
      : { x: Math.cos(angle), y: Math.sin(angle) }];
  }));
  const wanted = former.size ? STEPS_AFTER_CHANGE : STEPS;
  const steps = Math.max(20, Math.min(wanted, Math.round(PAIRS / nodes.length ** 2)));
  const all = [...places.values()];
  const spring = 1 / Math.sqrt(Math.max(1, nodes.length));
  for (let step = 0; step < steps && all.length > 2; step += 1) {
    const heat = 0.1 * (1 - step / steps);
    const force = all.map(() => ({ x: 0, y: 0 }));
    for (let i = 0; i < all.length; i += 1) {
      for (let j = 0; j < i; j += 1) {
        const dx = all[i].x - all[j].x, dy = all[i].y - all[j].y;
        const push = (spring * spring) / Math.max(1e-4, dx * dx + dy * dy);
        force[i].x += dx * push; force[i].y += dy * push;
        force[j].x -= dx * push; force[j].y -= dy * push;
      }
    }
    const index = new Map(nodes.map((node, at) => [node.id, at]));
    for (const link of links) {
      const i = index.get(link.a), j = index.get(link.b);
      if (i === undefined || j === undefined) continue;
      const dx = all[i].x - all[j].x, dy = all[i].y - all[j].y;
      const pull = Math.sqrt(dx * dx + dy * dy) / spring / 2;
      force[i].x -= dx * pull; force[i].y -= dy * pull;
      force[j].x += dx * pull; force[j].y += dy * pull;
    }
    all.forEach((place, at) => {
      const strength = Math.hypot(force[at].x, force[at].y) || 1;
      const step = Math.min(heat, strength * 0.05);
      place.x += (force[at].x / strength) * step;
      place.y += (force[at].y / strength) * step;
    });
  }
  return fit(places);
}

function fit(places) {
  const xs = [...places.values()].map((p) => p.x), ys = [...places.values()].map((p) => p.y);
  const scale = (value, values, size, margin) => {
    const low = Math.min(...values), span = Math.max(...values) - low;
    return span < 1e-6 ? size / 2 : margin + ((value - low) / span) * (size - 2 * margin);
  };
  return new Map([...places].map(([id, p]) =>
    [id, { x: scale(p.x, xs, WIDTH, 70), y: scale(p.y, ys, HEIGHT, 50) }]));
}

export function draw(overview, places, chosen, choose) {
  const lines = overview.links.map((link) => {
    const a = places.get(link.a), b = places.get(link.b);
    if (!a || !b) return null;
    const own = link.a === overview.node || link.b === overview.node;
    const kind = link.two_way ? (own ? "own" : "") : "one-sided";
    const text = link.two_way ? `round trip ${link.rtt_ms.toFixed(2)} ms` : "reported by one side only";
    const line = svg("line", { x1: a.x, y1: a.y, x2: b.x, y2: b.y, class: kind });
    const title = svg("title");
    title.textContent = text;
    line.append(title);
    return line;
  });
  const circles = overview.nodes.map((node) => {
    const place = places.get(node.id);
    const state = node.id === overview.node ? "self" : node.reachable ? "" : "away";
    const group = svg("g", {
      class: `${state} ${node.id === chosen ? "chosen" : ""}`, tabindex: 0, role: "button",
      "aria-label": `${node.name || node.id}, ${node.reachable ? "reachable" : "unreachable"}`,
    });
    const label = svg("text", { x: place.x, y: place.y + 28 });
    label.textContent = node.name || node.id.slice(0, 8);
    group.append(svg("circle", { cx: place.x, cy: place.y, r: 11 }), label);
    group.addEventListener("click", () => choose(node.id));
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(node.id); }
    });
    return group;
  });
  return svg("svg", { class: "graph", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": "Nodes and links" },
    ...lines.filter(Boolean), ...circles);
}
