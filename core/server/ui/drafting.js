// Speculation: who may draft, why nothing came of it, and drafts in any case if that is wanted.

import { props } from "./models.js";
import { number, recall, remember } from "./settings.js";

const byId = (id) => document.getElementById(id);
const FIXED_LENGTH = 3; // tokens of a draft in any case, as `--spec-fixed` has it
const boxes = () => [...document.querySelectorAll("#drafters input")];

// The field `speculative` of a request.
export function wanted() {
  if (!byId("speculate").checked) return { off: true };
  const chosen = boxes().filter((box) => box.checked).map((box) => box.value);
  const fixed = byId("fixed").checked || undefined;
  return {
    types: chosen.length === boxes().length ? undefined : chosen.length ? chosen : ["none"],
    n_max: number("n-max") ?? (fixed && FIXED_LENGTH),
    fixed,
  };
}

export function offer(types) {
  const off = recall("drafters-off") ?? [];
  const labels = types.map((type) => {
    const label = document.createElement("label");
    label.className = "row";
    const box = document.createElement("input");
    box.type = "checkbox";
    box.value = type;
    box.checked = !off.includes(type);
    box.onchange = () =>
      remember("drafters-off", boxes().filter((each) => !each.checked).map(({ value }) => value));
    const idle = document.createElement("span");
    idle.className = "idle";
    label.append(box, ` ${type}`, idle);
    return label;
  });
  byId("drafters").replaceChildren(...labels);
  for (const id of ["speculate", "fixed"]) byId(id).disabled = !types.length;
}

function showIdle(drafters) {
  for (const label of document.querySelectorAll("#drafters label")) {
    const name = label.querySelector("input").value;
    const reason = drafters.find((each) => each.name === name)?.idle;
    label.querySelector(".idle").textContent = reason ? `idle: ${reason}` : "";
  }
}

// Why the text of this run was written without help: {text, canFix}; null if it had some.
export async function explain(run) {
  let found = null;
  try {
    found = await props();
  } catch {
    return null; // the next answer asks again
  }
  const drafters = found.drafters ?? [];
  showIdle(drafters);
  const drafted = run.timings?.draft_n ?? run.accepted + run.rejected;
  const accepted = run.timings?.draft_n_accepted ?? run.accepted;
  if (!run.tokens || accepted || !byId("speculate").checked) return null;
  const what = drafted ? `None of ${drafted} drafted tokens was accepted` : "Nothing was drafted";
  if (!drafters.length)
    return { text: `${what}: this server was started without a drafter.`, canFix: false };
  if (!boxes().some((box) => box.checked))
    return { text: `${what}: no drafter is chosen in the settings.`, canFix: true };
  const isFixed = byId("fixed").checked;
  return { text: `${what}${reasonOf(drafters, drafted, isFixed)}`, canFix: !isFixed };
}

function reasonOf(drafters, drafted, isFixed) {
  const reasons = drafters.filter(({ idle }) => idle).map(({ name, idle }) => `${name}: ${idle}`);
  if (reasons.length) return `. ${reasons.join("; ")}.`;
  if (isFixed || drafted) return ".";
  return ": the server drafts where it has measured that this saves time, and here it has not (yet).";
}

// From now on the longest draft at every step, whatever was measured.
export function fix() {
  if (!boxes().some((box) => box.checked)) for (const box of boxes()) box.click();
  byId("fixed").checked = true;
  byId("fixed").dispatchEvent(new Event("change"));
}
