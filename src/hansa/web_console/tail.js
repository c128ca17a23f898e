// The messages at this agent's broker, as they come. They need the token of [admin] token.

import { clockTime, count, element, soft, table } from "./format.js";
import { state } from "./model.js";
import { follow } from "./stream.js";

const SHOWN = 200;
let open = null;

export function stopTail() {
  if (open) open.abort();
}

async function startTail(render) {
  stopTail();
  const { tail } = state, mine = new AbortController();
  open = mine;
  Object.assign(tail, { isOpen: true, problem: "", shown: [], count: 0 });
  render();
  try {
    await follow(`/tail?${new URLSearchParams({ filter: tail.filter, messages: tail.messages })}`, {
      signal: mine.signal, token: tail.token,
      onEvent: (name, data) => {
        if (name === "message") { tail.count += 1; tail.shown = [data, ...tail.shown].slice(0, SHOWN); }
        if (name === "end") tail.problem = data.problem;
        render();
      },
    });
  } catch (error) {
    if (!mine.signal.aborted) tail.problem = error.message;
  }
  if (open === mine) { tail.isOpen = false; open = null; render(); }
}

export function tailView(render) {
  const { tail } = state;
  const field = (label, name, more) => element("label", {}, `${label} `, element("input", { value: tail[name], "aria-label": label,
    oninput: (event) => { tail[name] = event.target.value; }, ...more }));
  const form = element("form", { className: "row", onsubmit: (event) => { event.preventDefault(); startTail(render); } },
    field("Filter", "filter", { type: "search", required: true }),
    field("Messages", "messages", { type: "number", min: 1, max: 2000 }),
    field("Token", "token", { type: "password", autocomplete: "off" }),
    element("button", { type: "submit" }, tail.isOpen ? "Restart" : "Start"),
    element("button", { type: "button", disabled: !tail.isOpen, onclick: stopTail }, "Stop"));
  const rows = tail.shown.map((each) => [element("span", { className: "time" }, clockTime(each.at_ms)), element("code", {}, each.topic),
    `${each.qos}${each.retain ? " retained" : ""}`, count(each.bytes),
    element("code", { className: each.is_text ? "" : "soft" }, each.text + (each.is_cut ? " …" : ""))]);
  const text = tail.isOpen ? `${count(tail.count)} of ${count(tail.messages)} messages` : tail.count ? `ended after ${count(tail.count)} messages` : "";
  return [form,
    tail.problem ? element("p", { className: "bad" }, tail.problem) : "",
    soft(text || "Shows the messages that this agent's broker delivers for a filter, until their number is reached. The token is the value of [admin] token in its settings."),
    rows.length ? table([["time", false], ["topic", false], ["QoS", false], ["bytes", true], ["payload", false]], rows, "") : ""];
}
