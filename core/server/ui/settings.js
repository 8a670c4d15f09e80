// What is set in the panel stays set, in this browser.

const STORE = "nextn-settings";
const byId = (id) => document.getElementById(id);
const FIELDS = [
  "speculate", "fixed", "n-max", "tint", "rejected", "temperature", "top-p", "seed", "max-tokens", "system",
];

const kept = read();

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(STORE));
    return found !== null && typeof found === "object" ? found : {};
  } catch {
    return {}; // damaged or refused: as if nothing had been set
  }
}

export const recall = (name) => kept[name];

export function remember(name, value) {
  kept[name] = value;
  try {
    localStorage.setItem(STORE, JSON.stringify(kept));
  } catch { /* it holds until the page is left */ }
}

// Fields get what was set last, and keep what is set from now on.
export function watch() {
  for (const id of FIELDS) {
    const field = byId(id);
    const name = field.type === "checkbox" ? "checked" : "value";
    if (kept[id] !== undefined) field[name] = kept[id];
    field.addEventListener("change", () => remember(id, field[name]));
  }
}

export function reset() {
  for (const id of FIELDS) {
    const field = byId(id);
    if (field.type === "checkbox") field.checked = field.defaultChecked;
    else field.value = field.defaultValue;
    delete kept[id];
    field.dispatchEvent(new Event("change"));
  }
}

export function number(id) {
  const value = byId(id).valueAsNumber;
  return Number.isFinite(value) ? value : undefined;
}
