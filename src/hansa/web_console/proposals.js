// The changes of links that the topology manager proposes, and applying them after a confirmation.

import { element, heading, soft, table } from "./format.js";
import { state } from "./model.js";

const same = (one, other) => one && one.kind === other.kind && one.a === other.a && one.b === other.b;

// `act` has the functions load, choose (a change to confirm, or null) and apply.
export function proposalsView(act) {
  const { proposals } = state, { document, chosen } = proposals;
  if (!document) return [soft("asking the manager")];
  if (document.error) return [element("p", { className: "bad" }, document.error)];
  if (!document.manager) {
    return [heading("No topology manager"),
      element("p", {}, "This agent knows no topology manager, so nothing proposes links. Links are those of [link] neighbours, and those that agents dial to heal."),
      element("p", {}, "To get proposals: start one with ", element("code", {}, "hansa manager"), ", and write its address into ",
        element("code", {}, "[topology] manager"), " in the settings of every agent. The page of an agent with ",
        element("code", {}, "[topology] operator_token"), " shows them.")];
  }
  const rows = document.changes.map((change) => [
    change.kind === "add" ? "add" : element("b", { className: "warn" }, "remove"),
    `${change.a_name} – ${change.b_name}`, change.reason,
    same(chosen, change) ? confirmation(change, act) : element("button", { type: "button", onclick: () => act.choose(change) }, "Apply …")]);
  const field = element("input", { type: "password", autocomplete: "off", value: proposals.token, "aria-label": "Token",
    oninput: (event) => { proposals.token = event.target.value; } });
  return [
    element("form", { className: "row", onsubmit: (event) => { event.preventDefault(); act.load(); } },
      element("button", { type: "submit" }, "Ask again"), element("label", {}, "Token ", field)),
    proposals.done ? element("p", { className: "good", role: "status" }, proposals.done) : "",
    document.problem || proposals.problem ? element("p", { className: "bad", role: "alert" }, document.problem || proposals.problem) : "",
    soft(`Manager ${document.manager}. `, document.approval
      ? "Its changes wait for an operator, except links that join parts of a split federation."
      : "It makes its changes without asking, so they are here for a moment only; set approval in its settings to decide yourself."),
    document.problem ? "" : table([["change", false], ["link", false], ["reason", false], ["", false]], rows, "The manager would change nothing now."),
    soft("Applying needs a token of scope operate, if this agent has one."),
  ];
}

function confirmation(change, act) {
  return element("span", { className: "row" },
    `${change.kind === "add" ? "Add" : "Remove"} the link ${change.a_name} – ${change.b_name}? `,
    element("button", { type: "button", className: "confirm", onclick: () => act.apply(change) }, "Yes, apply"),
    element("button", { type: "button", onclick: () => act.choose(null) }, "No"));
}
