// Numbers and elements for people. Text from outside is only ever set as text, never as HTML.

// Views describe elements; `show` changes the page only where a description differs from the former
// one. With 200 nodes, that costs a fraction of making the elements of a view again.
export function element(tag, properties = {}, ...children) { return { tag, properties, children }; }

export function svg(tag, properties = {}, ...children) { return { tag, isSvg: true, properties, children }; }

export function soft(...children) { return element("p", { className: "soft" }, ...children); }
export function heading(text) { return element("h2", {}, text); }
export function link(href, text) { return element("a", { href }, text); }

// `toLocaleString` makes a formatter for each call.
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const ONE_DIGIT = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const TWO_DIGITS = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });

export function count(value) {
  return value === null || value === undefined ? "–" : WHOLE.format(Math.round(value));
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${(value < 10 && unit ? ONE_DIGIT : WHOLE).format(value)} ${units[unit]}`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return `${(value < 10 ? TWO_DIGITS : WHOLE).format(value)} ms`;
}

export function rate(value, unit = bytes) {
  return value === null || value === undefined ? "–" : `${unit(value)}/s`;
}

export function clockTime(atMs) {
  const time = new Date(atMs), pad = (value, size = 2) => String(value).padStart(size, "0");
  return `${pad(time.getHours())}:${pad(time.getMinutes())}:${pad(time.getSeconds())}.${pad(time.getMilliseconds(), 3)}`;
}

// A table; a column is [heading, isNumber]. A caption names it for screen readers.
export function table(columns, rows, empty) {
  if (!rows.length) return soft(empty);
  const head = element("tr", {}, ...columns.map(([text, isNumber]) =>
    element("th", { className: isNumber ? "number" : "", scope: "col" }, text)));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, index) =>
    element("td", { className: columns[index][1] ? "number" : "" }, cell))));
  return element("div", { className: "scroll", tabIndex: 0 },
    element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

export function sparkline(values, text = "") {
  const highest = Math.max(1, ...values);
  const points = values.map((value, at) => `${at * (120 / Math.max(1, values.length - 1))},${23 - (22 * value) / highest}`);
  return svg("svg", { class: "spark", viewBox: "0 0 120 24", preserveAspectRatio: "none", role: "img", "aria-label": text },
    svg("polyline", { points: points.join(" ") }));
}

// ---------------------------------------------------------------- from descriptions to the page

const shown = new WeakMap();

// Shows children below an element, in place, so that focus, selection and scrolling stay.
export function show(parent, children) {
  patchChildren(parent, shown.get(parent) || [], children);
  shown.set(parent, children);
}

function create(described) {
  if (typeof described !== "object") return document.createTextNode(described);
  const { tag, isSvg, properties, children } = described;
  const made = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const name in properties) setProperty(made, isSvg, name, properties[name]);
  made.append(...children.map(create));
  return made;
}

function setProperty(made, isSvg, name, value) {
  if (name.startsWith("on") || (!isSvg && name in made && name !== "list")) made[name] = value;
  else made.setAttribute(name, value);
}

function removeProperty(made, name) {
  if (name.startsWith("on")) made[name] = null;
  else made.removeAttribute(name === "className" ? "class" : name);
}

function patch(old, before, after) {
  if (typeof before !== "object" || typeof after !== "object") {
    if (typeof before === typeof after) { if (before !== after) old.data = after; } else old.replaceWith(create(after));
    return;
  }
  if (before.tag !== after.tag) { old.replaceWith(create(after)); return; }
  for (const name in before.properties) if (!(name in after.properties)) removeProperty(old, name);
  for (const name in after.properties) {
    const value = after.properties[name];
    // What somebody types stays; a field that is left shows its value again.
    if (name === "value" && old.nodeName === "INPUT") { if (document.activeElement !== old && old.value !== String(value)) old.value = value; }
    else if (before.properties[name] !== value) setProperty(old, after.isSvg, name, value);
  }
  patchChildren(old, before.children, after.children);
}

function patchChildren(parent, before, after) {
  const old = parent.childNodes, common = Math.min(before.length, after.length);
  while (old.length > common) parent.lastChild.remove();
  let at = parent.firstChild;
  for (let index = 0; index < common; index += 1) {
    const next = at.nextSibling;
    patch(at, before[index], after[index]);
    at = next;
  }
  if (after.length > common) parent.append(...after.slice(common).map(create));
}
