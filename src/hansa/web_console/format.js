// Numbers and elements for people. Text from outside is only ever set as text, never as HTML.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function svg(tag, properties = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function soft(...children) { return element("p", { className: "soft" }, ...children); }
export function heading(text) { return element("h2", {}, text); }
export function link(href, text) { return element("a", { href }, text); }

export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${value.toLocaleString("en", { maximumFractionDigits: value < 10 && unit ? 1 : 0 })} ${units[unit]}`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return `${value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 0 })} ms`;
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

const HANDLERS = ["onclick", "oninput", "onsubmit", "onkeydown", "ontoggle"];

// Changes an element into another one in place, so that focus, selection and scrolling stay.
export function patch(old, made) {
  if (old.nodeType !== made.nodeType || old.nodeName !== made.nodeName) { old.replaceWith(made); return; }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== made.data) old.data = made.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of made.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const name of HANDLERS) if (old[name] !== made[name]) old[name] = made[name];
  patchChildren(old, [...made.childNodes]);
  const isField = ["INPUT", "SELECT"].includes(old.nodeName);
  if (isField && document.activeElement !== old && old.value !== made.value) old.value = made.value;
}

export function patchChildren(parent, made) {
  const old = [...parent.childNodes];
  made.forEach((child, at) => {
    if (typeof child === "string") child = document.createTextNode(child);
    if (at < old.length) patch(old[at], child);
    else parent.append(child);
  });
  old.slice(made.length).forEach((child) => child.remove());
}
