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
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

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

// A table; a column is [heading, isNumber].
export function table(columns, rows, empty) {
  if (!rows.length) return element("p", { className: "soft" }, empty);
  const head = element("tr", {}, ...columns.map(([heading, isNumber]) =>
    element("th", { className: isNumber ? "number" : "", scope: "col" }, heading)));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, index) =>
    element("td", { className: columns[index][1] ? "number" : "" }, cell))));
  return element("div", { className: "scroll" },
    element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

export function sparkline(values) {
  const highest = Math.max(1, ...values);
  const points = values.map((value, index) =>
    `${(index / Math.max(1, values.length - 1)) * 100},${20 - (value / highest) * 18}`);
  return svg("svg", { class: "spark", viewBox: "0 0 100 21", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("polyline", { points: points.join(" "), "vector-effect": "non-scaling-stroke" }));
}
