// A real message of an operator, after a confirmation, and its hops with times.

import { count, element, heading, soft, table } from "./format.js";
import { state } from "./model.js";

const ms = (value) => value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

// `act` has the functions ask (whether to show the confirmation) and publish.
export function realTraceParts(topic, act) {
  const { real } = state;
  if (real.isRunning) return [heading("Real message"), soft("publishing, and asking the nodes")];
  return [heading("Real message"), control(topic, act),
    real.error ? element("p", { className: "bad", role: "alert" }, real.error) : "",
    ...(real.answer ? hops(topic, real.answer) : [])];
}

function control(topic, act) {
  const { real } = state;
  if (!real.isAsked) return element("p", {}, element("button", { type: "button", className: "real", onclick: () => act.ask(true) }, "Publish a real message …"));
  return element("p", { className: "row warn" }, `All subscribers of ${topic} will receive a message of QoS 0, “hansa trace …”. `,
    element("label", {}, "Token ", element("input", { type: "password", autocomplete: "off", value: real.token, "aria-label": "Token",
      oninput: (event) => { real.token = event.target.value; } })),
    element("button", { type: "button", className: "confirm", onclick: act.publish }, "Yes, publish"),
    element("button", { type: "button", onclick: () => act.ask(false) }, "No"));
}

function hops(topic, answer) {
  const rows = answer.hops.map((hop) => [count(hop.hop),
    element("div", {}, hop.name, element("div", { className: "soft" }, hop.from_name === null ? "published" : `from ${hop.from_name}`)),
    ms(hop.at_ms) + (hop.error_ms ? ` ± ${ms(hop.error_ms)}` : ""),
    element("div", {}, ...inside(hop).map((each) => element("div", {}, each)))]);
  const names = answer.delivered.map((each) => each.name).join(", ");
  return [
    element("p", { className: names ? "good" : "warn", role: "status" }, names ? `The message was delivered at ${names}.` : "The message was delivered at no other broker."),
    ...answer.missed.map((each) => element("p", { className: "bad" }, `Not at ${each.name}.`)),
    ...answer.problems.map((each) => element("p", { className: "bad" }, `${each.name}: ${each.reason}.`)),
    table([["hop", true], ["node", false], ["arrival, ms", true], ["then, ms", false]], rows, "Nothing was published."),
    rows.length ? soft(`Subscribers of ${topic} received “${answer.payload}”. Arrivals count from the publication and compare clocks by questions of ${answer.clock_of}; ± is the largest error. Times after “then” are within one node, on its own clock.`) : "",
  ];
}

function inside(hop) {
  if (hop.duplicate) return ["another copy came before"];
  const found = hop.captured_ms === null ? [] : [`from the broker ${ms(hop.captured_ms)}`];
  for (const copy of hop.to) found.push(`to ${copy.name}${copy.after_ms === null ? "" : ` ${ms(copy.after_ms)}`}`);
  if (hop.delivered_ms !== null) found.push(`to the broker ${ms(hop.delivered_ms)}`);
  return found.length ? found : ["no copy sent, not delivered"];
}
